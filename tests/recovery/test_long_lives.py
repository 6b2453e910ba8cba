"""A job of 5,000 steps costs as little at its end as at its beginning, for the engine, the worker and its readers.

Sources: cases.md B15; issue 5, "Long lives". It runs for some minutes; what roll-overs must keep is shown by a short
job in tests/http/test_long_jobs.py. It prints its figures: `pytest -m slow -s tests/recovery/test_long_lives.py`.
"""

import itertools
import statistics
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import FreshStack
from tests.rig.client import TERMINAL, Client, Json
from tests.rig.plugins import call, fresh_name, publish_plugin, tool, turn
from tests.rig.stack import Stack
from tests.rig.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

STEPS = 5000
EVERY, AT = 100, 50
"""On such turns a person is asked."""
ASKS_FOR_PAY = """
permit (principal, action == Action::"call", resource);
permit (principal, action == Action::"call_unattended", resource) unless { resource == Tool::"pay" };
"""
SCRIPT = [
    turn(
        call("look", {"n": "{{ turn }}"}),
        call("note", {"n": "{{ turn }}"}, when="{{ turn % 10 == 0 }}"),
        call("pay", {"n": "{{ turn }}"}, when="{{ turn % input.every == input.at }}"),
        usage={"input_tokens": 10, "output_tokens": 1},
    )
]
PAGE_MORE_S = 0.05
"""A page of a long job may take so much longer than one of a short job (issue 5)."""
HISTORY_EVENTS, HISTORY_BYTES = 10_000, 5_000_000


async def runs_of(stack: Stack, job: str) -> list[tuple[int, int]]:
    """Events and bytes of the history of each run, the oldest first."""
    engine = await stack.engine()
    found: list[tuple[Any, int, int]] = []
    async for listed in engine.list_workflows(f"WorkflowId = 'demo.{job}'"):
        described = await engine.get_workflow_handle(listed.id, run_id=listed.run_id).describe()
        info = described.raw_description.workflow_execution_info
        found.append((described.start_time, info.history_length, info.history_size_bytes))
    return [(events, size) for _, events, size in sorted(found)]


async def page_s(app: Client, job: str, after: int) -> float:
    """The median time of a page of a hundred events after this one."""
    times: list[float] = []
    for _ in range(21):
        began = time.monotonic()
        page = await app.status(job, after=str(after), limit=100)
        times.append(time.monotonic() - began)
        assert page["source"] == "live" or page["status"] in TERMINAL
        assert [event["seq"] for event in page["events"]] == list(range(after + 1, after + 1 + len(page["events"])))
    return statistics.median(times)


async def next_request(app: Client, job: str, but: str) -> str:
    async def opened() -> str | None:
        view = await app.status(job)
        assert view["status"] not in TERMINAL, view
        return next((one["request_id"] for one in view["pending"] if one["request_id"] != but), None)

    return await wait_until(opened, 300, every=0.5, what="the next request")


def turns_s(events: Sequence[Json]) -> list[float]:
    """How long each turn took that asked nobody, from one question to the model to the next."""
    begun = [(event["data"]["turn"], at(event)) for event in events if event["type"] == "step.started"]
    return [
        (later - earlier).total_seconds()
        for (number, earlier), (_, later) in itertools.pairwise(begun)
        if number % EVERY != AT
    ]


def at(event: Json) -> datetime:
    return datetime.fromisoformat(event["at"])


def memory_kb(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0])


async def test_a_job_of_five_thousand_steps_costs_no_more_at_its_end(fresh_stack: FreshStack) -> None:
    stack = await fresh_stack()
    app, approver, operator = stack.client("app"), stack.client("approver"), stack.client("operator")
    plugin = fresh_name("long")
    await publish_plugin(
        operator,
        plugin,
        SCRIPT,
        tools=[tool("look"), tool("note", "idempotent_write"), tool("pay", "write")],
        tools_url=stack.effects.url,
        policy=ASKS_FOR_PAY,
        limits={"max_steps": STEPS, "max_duration_seconds": 3600},
    )
    short = await app.accepted(plugin, {"every": 1, "at": 0})
    await app.until_request(short)
    began = time.monotonic()
    job = await app.accepted(plugin, {"every": EVERY, "at": AT})
    first = await app.status(job)

    turns_of_one_ask = 2 * EVERY + EVERY // 10 + 1
    asks = STEPS // turns_of_one_ask + (STEPS % turns_of_one_ask > 2 * AT + AT // 10 + 1)
    memory: list[int] = []
    request = ""
    for number in range(1, asks + 1):
        request = await next_request(app, job, but=request)
        memory.append(memory_kb(stack.workers[0].pid))
        if number < asks:
            decided = await approver.decide(job, request, "approve")
            assert decided.status_code in (200, 202), decided.text

    seconds = time.monotonic() - began
    view = await app.status(job)
    last = view["last_event"]["seq"]
    beside = await page_s(app, short, 0)
    pages = {place: await page_s(app, job, place) for place in (0, 250, last // 2, last - 150)}
    assert max(pages.values()) - beside < PAGE_MORE_S, (beside, pages)
    status = await app.http.get(f"/v1/jobs/{job}")
    assert len(status.content) < 8000

    assert (await approver.decide(job, request, "approve")).status_code in (200, 202)
    ended = await app.until_ended(job, 120)
    assert (ended["failure"]["code"], ended["usage"]["steps"]) == ("budget_exceeded", STEPS)
    assert (ended["deadline"], ended["accepted_at"]) == (first["deadline"], first["accepted_at"])
    beside_ended = await page_s(app, short, 0)
    pages_ended = {place: await page_s(app, job, place) for place in (0, last // 2, last - 150)}
    assert max(pages_ended.values()) - beside_ended < PAGE_MORE_S, (beside_ended, pages_ended)

    runs = await runs_of(stack, job)
    assert len(runs) > 2
    assert max(events for events, _ in runs) < HISTORY_EVENTS
    assert max(size for _, size in runs) < HISTORY_BYTES
    events = await app.events(job)
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert sum(event["type"] == "request.decided" for event in events) == asks
    assert sum(event["type"] == "budget.warning" for event in events) == 1
    assert len(stack.effects.calls("pay", job=job)) == asks
    for name in ("look", "note", "pay"):
        sent = [one.args["n"] for one in stack.effects.calls(name, job=job)]
        numbers = [int(n[0] if name == "look" else n) for n in sent]  # a read's is in the query
        assert numbers == sorted(set(numbers)), f"{name} ran once for each turn, in order"
    turns = turns_s(events)
    early, late = statistics.median(turns[100:500]), statistics.median(turns[-400:])
    figures = {
        "seconds": seconds,
        "runs": runs,
        "events": len(events),
        "turn early/late": (early, late, late / early),
        "page of a short job, of the long one": (beside, pages),
        "the same, ended": (beside_ended, pages_ended),
        "worker's memory, kB": (memory[0], memory[len(memory) // 2], memory[-1]),
        "status, bytes": len(status.content),
    }
    print(*(f"{name}: {value}" for name, value in figures.items()), sep="\n")  # noqa: T201 - the figures of the promise
    assert late < 1.5 * early, figures
    assert memory[-1] < memory[2] + 100_000, figures
