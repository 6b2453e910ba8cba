"""Approvals where things break: a worker killed behind a decision, histories that roll over, authority taken away.

And the doors that are no HTTP: raw signals decide nothing, and the command line is refused like anybody.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.http.decisions import asking, person, question, revoke
from tests.http.jobs import READS_RUN, waiting_job
from tests.recovery.grounds import kill_workers, new_worker, running_stack
from tests.recovery.test_cli_exits import piped
from tests.rig.client import TERMINAL, Client, Json, problem
from tests.rig.plugins import ASK_ALL, call, final, fresh_name, publish_plugin, tool, turn
from tests.rig.stack import Stack
from tests.rig.waiting import wait_until

TURNS, QUESTIONS = 20, 10
KILLED_JOBS = 8


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Stack]:
    """Histories roll over after 60 events, which a turn of ten questions passes."""
    folder: Path = tmp_path_factory.mktemp("approvals")
    async with running_stack(folder, settings={"JOBGATE_ROLL_OVER_AFTER_EVENTS": "60"}) as own:
        yield own


async def test_two_hundred_answers_over_many_histories_are_each_taken_once_and_in_order(stack: Stack) -> None:
    """Each turn is answered by two people in pairs, 5 ms apart, while the turn's other questions are open."""
    operator, app, name = stack.client("operator"), stack.client("app"), fresh_name("asks")
    await publish_plugin(
        operator,
        name,
        [*(turn(*(question(f"{at}.{n}?") for n in range(QUESTIONS))) for at in range(TURNS)), final({"ok": True})],
        limits={"max_steps": 900, "max_duration_seconds": 3600, "max_tokens": 1_000_000},
    )
    people = [(await person(stack, operator))[0] for _ in range(2)]
    job = await app.accepted(name)
    runs: set[str] = set()
    given: list[str] = []
    handle = (await stack.engine()).get_workflow_handle(f"demo.{job}")

    async def answered(who: Client, request: str, number: int, digest: str) -> None:
        response = await who.decide(job, request, "answer", answer=number, digest=digest)
        assert response.status_code in (200, 202), response.text
        given.append(request)

    last = ""
    for _ in range(TURNS):
        open_requests = await fresh_requests(app, job, given)
        runs.add((await handle.describe()).run_id or "")
        shown = await asyncio.gather(*(people[0].request(job, request) for request in open_requests))
        for first in range(0, QUESTIONS, 2):
            pair = [
                answered(who, asked["request_id"], len(given) + at, asked["action_digest"])
                for at, (who, asked) in enumerate(zip(people, shown[first : first + 2], strict=True))
            ]
            await asyncio.gather(*pair)
        last = open_requests[-1]
    ended = await app.until_ended(job, timeout=60)
    assert ended["status"] == "succeeded"
    log = await app.events(job)
    assert [event["seq"] for event in log] == list(range(1, len(log) + 1))
    opened = [event["data"]["request_id"] for event in log if event["type"] == "request.opened"]
    decided = Counter(event["data"]["request_id"] for event in log if event["type"] == "request.decided")
    assert (len(opened), decided) == (TURNS * QUESTIONS, Counter(opened))
    assert sorted(given) == sorted(opened)
    assert len(runs) > 3  # the mutant: without roll-overs this test says nothing
    late = await people[0].decide(job, last, "answer", answer="late")
    assert problem(late) == (409, "already-decided")
    early = await people[0].request(job, opened[0])  # 199 others were closed after it
    assert early["state"] == "answered"


async def fresh_requests(app: Client, job: str, given: list[str]) -> list[str]:
    async def opened() -> list[str]:
        pending = [item["request_id"] for item in (await app.status(job))["pending"]]
        fresh = [request for request in pending if request not in given]
        return fresh if len(fresh) == QUESTIONS else []

    return await wait_until(opened, 60, what="the next turn's questions are open")


async def test_a_worker_killed_between_decision_and_tool_runs_nothing_twice(stack: Stack) -> None:
    operator, app, approver = stack.client("operator"), stack.client("app"), stack.client("approver")
    name = fresh_name("asks")
    await publish_plugin(
        operator,
        name,
        [turn(call("before", {"n": 0})), turn(call("pay", {"n": 1})), final({"ok": True})],
        tools=[tool("before", "write"), tool("pay", "write")],
        tools_url=stack.effects.url,
        policy=READS_RUN + 'permit (principal, action, resource == Tool::"before");\n' + ASK_ALL,
    )
    waiting = [await waiting_job(app, name) for _ in range(KILLED_JOBS)]
    shown = {job: await approver.request(job, request) for job, request in waiting}

    async def approve(job: str) -> Json:
        asked = shown[job]
        given = await approver.decide(job, asked["request_id"], "approve", digest=asked["action_digest"])
        assert given.status_code in (200, 202), given.text
        return given.json()

    deciding = [asyncio.create_task(approve(job)) for job, _ in waiting]
    await asyncio.wait(deciding, return_when=asyncio.FIRST_COMPLETED)
    kill_workers(stack)
    receipts = await asyncio.gather(*deciding)
    await new_worker(stack)
    for (job, _), receipt in zip(waiting, receipts, strict=True):
        ended = await ended_or_given_up(app, approver, job)
        sent = stack.effects.calls("pay", job=job)
        assert len(sent) <= 1
        assert ended["status"] == "succeeded" or ended["failure"]["code"] == "effect_unknown"
        assert (ended["status"] != "succeeded") or len(sent) == 1
        assert len(stack.effects.calls("before", job=job)) == 1
        assert await approve(job) == receipt
        asked = shown[job]
        opposite = await approver.decide(job, asked["request_id"], "reject", digest=asked["action_digest"])
        assert problem(opposite) == (409, "already-decided")
        assert stack.effects.calls("pay", job=job) == sent


async def ended_or_given_up(app: Client, approver: Client, job: str) -> Json:
    """The end of a job; where it asks what came of its write, once somebody has settled that nobody can tell."""

    async def over() -> Json | None:
        view = await app.status(job)
        in_doubt = any(request["kind"] == "reconciliation" for request in view["pending"])
        return view if in_doubt or view["status"] in TERMINAL else None

    view = await wait_until(over, 60, what=f"{job} ends or asks what came of its write")
    return view if view["status"] in TERMINAL else await app.give_up(job, approver)


async def test_a_job_whose_authority_was_taken_has_nothing_to_decide(stack: Stack) -> None:
    """The ledger says so before any worker does; the mutant is the same look before the revocation."""
    operator = stack.client("operator")
    boss, name, grant_id = await person(stack, operator, "jobs:submit", "jobs:read")
    approver, _, _ = await person(stack, operator, "jobs:decide", "jobs:read")
    job, request = await waiting_job(boss, await asking(stack, operator))
    digest = (await approver.request(job, request))["action_digest"]

    async def in_inbox() -> bool:
        return job in str(await approver.get("/v1/requests"))

    await wait_until(in_inbox, 10, what="the inbox shows it")
    assert (await approver.status(job))["pending"] != []
    kill_workers(stack)
    await revoke(operator, grant_id)
    for _ in range(2):
        refused = await approver.decide(job, request, "approve", digest=digest)
        assert problem(refused) == (409, "request-voided")
    assert (await approver.request(job, request))["state"] == "voided"
    assert not await in_inbox()
    assert (await approver.status(job))["pending"] == []
    await new_worker(stack)
    ended = await approver.until_ended(job)
    assert (ended["status"], ended["failure"]["code"]) == ("failed", "authority_revoked")
    order = {"principal": name, "actions": ["jobs:submit", "jobs:read"], "plugins": ["*"]}
    await operator.post("/v1/grants", order, expect=201)
    assert problem(await approver.decide(job, request, "approve", digest=digest)) == (409, "request-voided")
    assert stack.effects.calls("pay", job=job) == []


# ---- the doors that are no HTTP


async def test_signals_by_hand_approve_nothing_in_any_shape(stack: Stack) -> None:
    operator, app, approver = stack.client("operator"), stack.client("app"), stack.client("approver")
    first, _, _ = await person(stack, operator)
    name = await asking(stack, operator, call("pay", {"n": 1}), call("pay", {"n": 2}), approval={"quorum": 2})
    job = await app.accepted(name)
    one, other = await app.until_request(job, count=2)
    assert (await first.decide(job, one, "approve")).json()["votes"] == 1
    await app.until_event(job, "request.voted")
    handle = (await stack.engine()).get_workflow_handle(f"demo.{job}")
    forged: list[Any] = [
        {"request_id": one, "decision": "approve", "by": "approver"},
        {"request_id": other, "decision": "approve", "by": "approver", "decided_by": ["approver", "boss"]},
        {"request_id": one, "verdict": "approve", "action_digest": (await app.request(job, one))["action_digest"]},
        {"request_id": "r9-ffffff", "decision": "approve"},
        {"request_id": [one]},
        one,
        True,
    ]
    for shape in forged:
        await handle.signal("decision", shape)
    await handle.signal("decision", args=[{"request_id": one}, "approve"])
    for made_up in ("approve", "decide", "request.decided"):
        await handle.signal(made_up, {"request_id": one, "decision": "approve"})
    await app.until_event(job, "decision.refused", count=len(forged) + 4)
    assert (await app.status(job))["status"] == "waiting_for_human"
    assert {(await app.request(job, request))["state"] for request in (one, other)} == {"pending"}
    assert stack.effects.calls("pay", job=job) == []
    assert (await approver.decide(job, one, "approve")).json()["state"] == "approved"
    assert len(await stack.effects.wait_for_calls("pay", job=job)) == 1  # the mutant: a decision does run it
    await app.cancel(job)


async def test_the_command_line_is_refused_with_the_same_codes(stack: Stack) -> None:
    operator, app = stack.client("operator"), stack.client("app")
    other, _, _ = await person(stack, operator)
    plugin = await asking(stack, operator, approval={"groups": ["finance"]})
    job, request = await waiting_job(app, plugin, initiator={"kind": "user", "id": "approver"})
    done_job, done = await waiting_job(app, await asking(stack, operator))
    assert (await other.decide(done_job, done, "reject")).status_code == 200
    gone_job, gone = await waiting_job(app, await asking(stack, operator))
    await app.cancel(gone_job)
    await app.until_ended(gone_job)
    finance = stack.token("approver", groups=["finance"])
    plain = stack.token("approver")
    table: list[tuple[str, str, str, tuple[str, ...], str]] = [
        (stack.token("operator"), job, request, ("approve",), "not-permitted"),
        (stack.token("approver", scopes=["jobs:read"]), job, request, ("approve",), "not-permitted"),
        ("jgk_made_up", job, request, ("approve",), "unauthenticated"),
        (plain, job, request, ("approve",), "not-an-approver"),
        (finance, job, request, ("approve",), "self-approval"),
        (finance, job, "r9-ffffff", ("approve",), "not-found"),
        (finance, "nothing", request, ("approve",), "not-found"),
        (plain, done_job, done, ("approve",), "already-decided"),
        (plain, gone_job, gone, ("approve",), "request-voided"),
        (plain, done_job, request, ("approve",), "not-found"),
    ]

    async def refusal(row: tuple[str, str, str, tuple[str, ...], str]) -> None:
        token, at_job, at_request, verdict, code = row
        environment = {"JOBGATE_URL": stack.apis[0].url, "JOBGATE_TOKEN": token, "JOBGATE_DATA": str(stack.data)}
        exit_code, out, err = await piped(environment, "decide", at_job, at_request, *verdict)
        assert (exit_code, code.encode() in out + err) == (1, True), (code, out, err)

    for rows in (table[:5], table[5:]):
        await asyncio.gather(*map(refusal, rows))
    assert (await app.request(job, request))["state"] == "pending"
    assert [stack.effects.calls("pay", job=one) for one in (job, done_job, gone_job)] == [[], [], []]
    await app.cancel(job)
