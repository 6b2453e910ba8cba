"""A job that rolls over is one job to everybody outside: what people send meanwhile is in its log, once and in order.

Source: cases.md B15. The roll-overs are forced here; tests/recovery/test_long_lives.py waits for those of the engine.
"""

import asyncio
from collections.abc import AsyncGenerator, Container, Iterable, Mapping
from dataclasses import dataclass

import httpx2
import pytest_asyncio

from tests.http.decisions import question
from tests.rig.client import Client, Json, problem
from tests.rig.doorstep import DEMO, Doorstep
from tests.rig.plugins import ALLOW_ALL, call, final, tool, turn
from tests.rig.stack import Stack
from tests.rig.waiting import wait_until
from workflows.contract.ids import JobId, workflow_id

TURNS, ASKED = 20, 10
RECONNECTS_AFTER = 20


@pytest_asyncio.fixture(loop_scope="session")
async def doorstep(stack: Stack) -> AsyncGenerator[Doorstep]:
    opened = await Doorstep.open(stack.settings)
    yield opened
    await opened.close()


async def runs_of(doorstep: Doorstep, job: str) -> int:
    """How many runs the job had until now, the current one included."""
    wanted = f"WorkflowId = '{workflow_id(DEMO, JobId(job))}'"
    return len([run.run_id async for run in doorstep.client.list_workflows(wanted)])


async def follow(app: Client, job: str) -> list[Json]:
    """Every event as a reader sees it who loses the connection again and again."""
    seen: list[Json] = []
    cursor = "0"
    while not seen or seen[-1]["type"] not in ("job.succeeded", "job.failed", "job.canceled"):
        async with app.stream(job, last_event_id=cursor) as events:
            async for frame in events:
                seen.append(frame.event)
                cursor = frame.id
                if len(seen) % RECONNECTS_AFTER == 0:
                    break
    return seen


async def asked(app: Client, job: str, count: int, but: Container[str] = ()) -> list[Json]:
    """The open requests, as soon as there are `count` that were not open before."""

    async def opened() -> list[Json] | None:
        pending = [one for one in (await app.status(job))["pending"] if one["request_id"] not in but]
        return pending if len(pending) == count else None

    return await wait_until(opened, 30, what=f"{count} new requests of {job}")


@dataclass(frozen=True, slots=True)
class Answering:
    """A person who answers the questions of one job, each with its own text."""

    who: Client
    job: str

    async def digests(self, requests: Iterable[Json]) -> dict[str, str]:
        names = [one["request_id"] for one in requests]
        return {name: (await self.who.request(self.job, name))["action_digest"] for name in names}

    async def answer(self, request: Json, digests: Mapping[str, str]) -> httpx2.Response:
        name = request["request_id"]
        return await self.who.decide(self.job, name, "answer", digest=digests[name], answer=request["title"])

    async def stood(self, request: Json, digests: Mapping[str, str]) -> bool:
        """Whether the answer counts; it is refused with a reason otherwise."""
        given = await self.answer(request, digests)
        if given.status_code in (200, 202):
            return True
        assert problem(given) in ((409, "request-voided"), (409, "job-ended")), given.text
        return False


async def test_each_of_two_hundred_answers_is_in_the_log_once_and_in_order_over_roll_overs(
    doorstep: Doorstep, app: Client, approver: Client
) -> None:
    """In pairs at the same moment, and each turn's last one once more while the job rolls over to the next turn."""
    asks = [question(f"{{{{ turn }}}}-{n}") | {"when": f"{{{{ turn <= {TURNS} }}}}"} for n in range(ASKED)]
    plugin = await doorstep.publish([turn(*asks)], policy=ALLOW_ALL)
    job = await doorstep.start(plugin, timeout_s=120, roll_over_after=20)
    person = Answering(approver, job)
    reader = asyncio.create_task(follow(app, job))
    sent: list[tuple[Json, Json]] = []
    again: list[asyncio.Task[bool]] = []
    digests: dict[str, str] = {}
    for _ in range(TURNS):
        requests = await asked(app, job, ASKED, but=digests.keys())
        digests |= await person.digests(requests)
        pairs = list(zip(requests[::2], requests[1::2], strict=True))
        for pair in pairs:
            assert all(await asyncio.gather(*(person.stood(one, digests) for one in pair)))
        again.append(asyncio.create_task(person.stood(requests[-1], digests)))
        sent += pairs
    assert all(await asyncio.gather(*again))
    view = await app.until_ended(job)
    assert (view["status"], view["next_action"]["code"]) == ("succeeded", "none")
    assert await runs_of(doorstep, job) >= TURNS // 2

    events = await app.events(job)
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert await reader == events
    decided = [event["message"].rpartition(": ")[2] for event in events if event["type"] == "request.decided"]
    assert len(decided) == len(set(decided)) == TURNS * ASKED
    assert [set(decided[at : at + 2]) for at in range(0, len(decided), 2)] == [
        {a["title"], b["title"]} for a, b in sent
    ]
    late, digest = next(iter(digests.items()))
    assert problem(await approver.decide(job, late, "reject", digest=digest)) == (409, "already-decided")


async def test_an_answer_given_while_the_job_ends_is_in_the_log_or_is_refused(
    doorstep: Doorstep, app: Client, approver: Client
) -> None:
    plugin = await doorstep.publish([turn(*(question(f"late {n}") for n in range(30))), final()], policy=ALLOW_ALL)
    counts = {True: 0, False: 0}
    for number in range(4):
        job = await doorstep.start(plugin, timeout_s=60)
        requests = await asked(app, job, 30)
        person = Answering(approver, job)
        digests = await person.digests(requests)
        some = asyncio.Semaphore(4)

        async def send(one: Json, who: Answering, known: Mapping[str, str], gate: asyncio.Semaphore = some) -> bool:
            async with gate:
                return await who.stood(one, known)

        sending = [asyncio.create_task(send(one, person, digests)) for one in requests]
        await sending[number * 2]
        if number % 2:
            await doorstep.client.get_workflow_handle(workflow_id(DEMO, job)).cancel()  # as in Temporal's own UI
        else:
            await app.cancel(job)
        stood = await asyncio.gather(*sending)
        await app.until_ended(job)
        log = [(event["type"], event["data"].get("request_id")) for event in await app.events(job)]
        for type, outcome in (("request.decided", True), ("request.voided", False)):
            told = [one["request_id"] for one, stands in zip(requests, stood, strict=True) if stands is outcome]
            assert sorted(name for of, name in log if of == type) == sorted(told)
            counts[outcome] += len(told)
    assert min(counts.values()) > 0, "both sides of the race were met"


async def test_effects_budget_and_deadline_go_on_over_roll_overs(
    stack: Stack, doorstep: Doorstep, app: Client, approver: Client
) -> None:
    script = [
        turn(call("look"), call("note", {"n": "{{ turn }}"}), call("pay", {"n": "{{ turn }}"}, when="{{ turn == 5 }}"))
    ]
    plugin = await doorstep.publish(
        script,
        tools=[tool("look"), tool("note", "idempotent_write"), tool("pay", "write")],
        tools_url=stack.effects.url,
        policy=ALLOW_ALL.replace(
            "resource);", 'resource) unless { action == Action::"call_unattended" && resource == Tool::"pay" };'
        ),
        manifest={"limits": {"max_steps": 60}},
    )
    job = await doorstep.start(plugin, timeout_s=120, roll_over_after=30)
    before = await app.status(job)
    [request] = await app.until_request(job)
    assert (await approver.decide(job, request, "approve")).status_code in (200, 202)
    view: Json = await app.until_ended(job)
    assert (view["failure"]["code"], view["usage"]["steps"]) == ("budget_exceeded", 60)
    assert (view["deadline"], view["accepted_at"]) == (before["deadline"], before["accepted_at"])
    assert await runs_of(doorstep, job) >= 4
    types = await app.event_types(job)
    assert types.count("budget.warning") == types.count("job.started") == 1
    assert [sent.args for sent in stack.effects.calls("pay", job=job)] == [{"n": 5}]
    notes = [sent.args["n"] for sent in stack.effects.calls("note", job=job)]
    assert notes == list(range(1, len(notes) + 1))
    assert len({sent.idempotency_key for sent in stack.effects.calls("note", job=job)}) == len(notes)
