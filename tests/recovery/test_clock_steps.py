"""Wall clocks that jump an hour, in the API or in the worker, while jobs are open: deadlines are the engine's, so no
job ends early and nothing is called late; what was stopped, expired or decided stays so; order and ages stay right.
"""

import re
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
import pytest_asyncio

from gateway.ledger.authorities import find_authority
from tests.http.submissions import ledger_of, refused
from tests.recovery.grounds import READS_RUN_WRITES_ASK, published
from tests.recovery.test_deadlines import instant, late
from tests.recovery.verbs import writes_after_cancel
from tests.rig.client import Client, Json, fresh_key, problem
from tests.rig.clock import COMPILER, Clock
from tests.rig.effect_log import Answer, Behaviour
from tests.rig.plugins import call, final, tool, turn
from tests.rig.stack import Stack
from tests.rig.vendors import TAKEN, post, way_back
from tests.rig.waiting import wait_until
from workflows.contract.ids import JobId, Workspace

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C compiler to build the clock with")
HOUR = timedelta(hours=1)
BUSY_S = 60.0
LONG_S = 6 * 3600
BOTH_WAYS = pytest.mark.parametrize("off", [HOUR, -HOUR], ids=["ahead", "behind"])


@dataclass(frozen=True, slots=True)
class Ground:
    """Of every process an own clock; the tests and the engine go by the machine's."""

    stack: Stack
    api: Clock
    worker: Clock
    clients: list[Client]

    def client(self, principal: str = "app", ttl: timedelta = timedelta(days=1)) -> Client:
        """With a token that is good whatever the API's clock says."""
        self.clients.append(Client(self.stack.apis[0].url, self.stack.token(principal, ttl=ttl)))
        return self.clients[-1]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def ground(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Ground]:
    folder = tmp_path_factory.mktemp("clocks")
    stack, api, worker = Stack(folder / "stack"), Clock(folder / "api"), Clock(folder / "worker")
    clients: list[Client] = []
    try:
        await stack.start(apis=0, workers=0)
        serving = stack.add_api(api.environment)
        polling = stack.add_worker({**worker.environment, "JOBGATE_PUBLIC_URL": serving.url})
        await stack.until_ready(serving)
        await stack.until_polling(polling)
        yield Ground(stack, api, worker, clients)
    finally:
        for client in clients:
            await client.http.aclose()
        await stack.close()


@dataclass(frozen=True, slots=True)
class Open:
    """Jobs that were open when the clock jumped, and the key and receipt of one that was over."""

    ended: str
    receipt: bytes
    decided: str
    request: str
    stopped: str
    reading: str


async def opened(ground: Ground, client: Client) -> tuple[str, Open]:
    """A plugin whose jobs write, ask, then write again; and jobs of it and of one that reads, at various places."""
    stack = ground.stack
    stack.effects.reset()
    stack.effects.set_behaviour("read", Behaviour(answer=Answer.HOLD))
    policy = READS_RUN_WRITES_ASK + 'permit (principal, action, resource == Tool::"first");\n'
    asks = await published(
        stack,
        [turn(call("first")), turn(call("second")), final()],
        *(tool("first", "write"), tool("second", "write")),
        policy=policy,
        max_duration_seconds=LONG_S,
    )
    reads = await published(stack, [turn(call("read")), final()], tool("read"), max_duration_seconds=LONG_S)
    quick = await published(stack, [final()], max_duration_seconds=LONG_S)
    ended = fresh_key()
    receipt = (await client.submit(quick, key=ended)).content
    await client.until_ended(ended, BUSY_S)
    decided, stopped = await client.accepted(asks), await client.accepted(asks)
    reading = await client.accepted(reads)
    [request] = await client.until_request(decided, BUSY_S)
    await client.until_request(stopped, BUSY_S)
    await stack.effects.wait_for_calls("read", job=reading)
    return quick, Open(ended, receipt, decided, request, stopped, reading)


def in_order(events: list[Json]) -> None:
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    times = [instant(event["at"]) for event in events]
    assert times == sorted(times)


@BOTH_WAYS
async def test_an_api_whose_clock_jumps_ends_no_job_and_keeps_order(ground: Ground, off: timedelta) -> None:
    app, approver, operator = ground.client(), ground.client("approver"), ground.client("operator")
    plugin, jobs = await opened(ground, app)
    stack = ground.stack
    with ground.api.off_by(off):
        for job in (jobs.decided, jobs.reading):
            view = await app.status(job)
            assert (view["status"] in ("running", "waiting_for_human"), view["overdue"]) == (True, False), view
        replay = await app.submit(plugin, key=jobs.ended)
        assert (replay.status_code, replay.content) == (200, jobs.receipt)
        assert (await approver.decide(jobs.decided, jobs.request, "approve")).status_code in (200, 202)
        canceled = (await app.cancel(jobs.stopped)).json()
        stack.effects.release("read")
        fresh = await app.accepted(plugin)
        ends = {job: await app.until_ended(job, BUSY_S) for job in (jobs.decided, jobs.reading, jobs.stopped, fresh)}
        assert not re.search(r"-\d+ (s|min|h|d)\b", (await operator.http.get("/readyz")).text), "a negative age"
    assert [ends[job]["status"] for job in (jobs.decided, jobs.reading, fresh)] == ["succeeded"] * 3
    assert ends[jobs.stopped]["status"] == "canceled"
    for job in (jobs.decided, jobs.reading, jobs.stopped):
        in_order(await app.events(job))
        assert [len(stack.effects.calls(name, job=job)) for name in ("first", "second")] == {
            jobs.decided: [1, 1],
            jobs.reading: [0, 0],
            jobs.stopped: [1, 0],
        }[job]
    # With the right time again nothing is another one.
    again = (await app.cancel(jobs.stopped)).json()
    assert again["cancel_requested_at"] == canceled["cancel_requested_at"]
    assert (await approver.decide(jobs.decided, jobs.request, "approve")).status_code == 200
    assert problem(await approver.decide(jobs.decided, jobs.request, "reject"))[0] == 409
    assert await writes_after_cancel(operator) == 0


async def test_what_expired_is_not_reopened_by_a_clock_that_is_set_back(ground: Ground) -> None:
    app, approver = ground.client(), ground.client("approver")
    asked = tool("brief", "write", approval={"groups": [], "quorum": 1, "expires_in_seconds": 1})
    plugin = await published(ground.stack, [turn(call("brief")), final()], asked, policy=READS_RUN_WRITES_ASK)
    job = await app.accepted(plugin)
    [request] = await app.until_request(job, BUSY_S)
    digest = (await app.request(job, request))["action_digest"]
    await app.until_event(job, "request.expired", BUSY_S)
    with ground.api.off_by(-HOUR), ground.worker.off_by(-HOUR):
        answer = await approver.decide(job, request, "approve", digest=digest)
        assert problem(answer)[0] in (409, 410), answer.text
        assert (await app.until_ended(job, BUSY_S))["status"] == "succeeded"
    assert ground.stack.effects.calls("brief", job=job) == []


async def test_a_credential_is_good_by_the_clock_of_who_is_asked(ground: Ground) -> None:
    """What is over by its clock is refused, and nothing else of it: no job of the caller ends for it."""
    brief = ground.client(ttl=timedelta(minutes=30))
    assert (await brief.http.get("/v1/jobs?limit=1")).status_code == 200
    with ground.api.off_by(HOUR):
        refused(await brief.http.get("/v1/jobs?limit=1"), 401, "unauthenticated")
    with ground.api.off_by(-HOUR):
        assert (await brief.http.get("/v1/jobs?limit=1")).status_code == 200
        until = (datetime.now(UTC) + timedelta(seconds=4)).isoformat()
        asked = {"Jobgate-Http-Deadline": until, "Idempotency-Key": fresh_key()}
        answer = await brief.http.post("/v1/jobs", json={"plugin": "any", "input": {}}, headers=asked)
        refused(answer, 422, "input-invalid")
    assert (await brief.http.get("/v1/jobs?limit=1")).status_code == 200


# ---- the worker's


@BOTH_WAYS
async def test_a_worker_whose_clock_is_wrong_works_by_the_engines(ground: Ground, off: timedelta) -> None:
    """Ahead it would take every deadline for passed, behind it would end a vendor's time before it began."""
    app, stack = ground.client(), ground.stack
    stack.effects.reset()
    stack.effects.set_behaviour("later", TAKEN)
    later = tool("later", "write", callback={"expires_in_seconds": 60})
    script = [turn(call("get")), turn(call("put")), turn(call("later")), final()]
    with ground.worker.off_by(off):
        plugin = await published(stack, script, tool("get"), tool("put", "write"), later)
        for _ in range(2):
            job = await app.accepted(plugin, timeout_seconds=300)
            [sent] = await stack.effects.wait_for_calls("later", 1, BUSY_S, job=job)
            assert (await post(way_back(sent), {"n": 1})).status_code == 200
            assert (await app.until_ended(job, BUSY_S))["status"] == "succeeded"
            in_order(await app.events(job))
            assert [len(stack.effects.calls(name, job=job)) for name in ("get", "put", "later")] == [1, 1, 1]
            assert "attempt.replaced" not in await app.event_types(job)
            await wait_until(lambda job=job: known_to_have_ended(stack, job), BUSY_S, every=0.3, what=f"{job}'s end")


async def known_to_have_ended(stack: Stack, job: str) -> bool:
    """Whether a sweep has written down that the engine closed the job."""
    async with ledger_of(stack) as ledger:
        row = await ledger.read(lambda conn: find_authority(conn, Workspace("demo"), JobId(job)))
    return row is not None and row.ended_at is not None


@BOTH_WAYS
async def test_a_worker_whose_clock_is_wrong_works_until_the_deadline_and_not_beyond(
    ground: Ground, off: timedelta
) -> None:
    """By the effect log's clock, which is right."""
    app, stack = ground.client(), ground.stack
    plugin = await published(stack, [turn(call("again"))], tool("again"), max_steps=100_000)
    with ground.worker.off_by(off):
        job = await app.accepted(plugin, timeout_seconds=5)
        end = await app.until_ended(job, BUSY_S)
    assert (end["status"], end["failure"]["code"]) == ("failed", "deadline_exceeded"), end
    deadline, calls = instant(end["deadline"]), stack.effects.calls("again", job=job)
    assert late(calls, deadline) == []
    assert late(calls, deadline - timedelta(seconds=3))
    assert instant(end["finished_at"]) >= deadline - timedelta(seconds=0.1)
