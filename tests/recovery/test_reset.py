"""An operator resets a job: the reader is told, nothing is told twice, nobody's old word counts, no write is repeated.

B29, from Temporal's own command line: a waiting, a running and an ended job, with and without the signals sent since.
"""

from collections.abc import AsyncGenerator

import pytest
import pytest_asyncio

from tests.recovery.grounds import READS_RUN_WRITES_ASK, kill_workers, new_worker, published, running_stack
from tests.recovery.operators import described, numbers, on_job, reset, tasks_of
from tests.rig.client import Client, StreamEvent, problem
from tests.rig.effect_log import Answer, Behaviour
from tests.rig.plugins import call, final, tool, turn
from tests.rig.stack import Stack
from tests.rig.waiting import wait_until

BUSY_S = 60.0


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def ground(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Stack]:
    async with running_stack(tmp_path_factory.mktemp("reset")) as stack:
        yield stack


async def paying(ground: Stack, name: str) -> str:
    """A plugin that looks, then pays once a person said so."""
    script = [turn(call(f"{name}-look")), turn(call(name, {"n": 1})), final()]
    tools = (tool(f"{name}-look"), tool(name, "write"))
    return await published(ground, script, *tools, policy=READS_RUN_WRITES_ASK)


async def asked_anew(app: Client, job: str, *old: str) -> str:
    async def other() -> str | None:
        pending = [one["request_id"] for one in (await app.status(job))["pending"]]
        return next((one for one in pending if one not in old), None)

    return await wait_until(other, BUSY_S, what=f"{job} asks under a new id")


async def words_of_reset(app: Client, job: str, count: int = 1) -> None:
    await app.until_event(job, "job.recovered", BUSY_S, count=count)


@pytest.mark.parametrize(("task", "signals"), [(0, True), (-2, False), (-1, True), (-1, False)])
async def test_a_waiting_job_that_is_reset_asks_again_and_says_so(ground: Stack, task: int, signals: bool) -> None:
    app, approver = ground.client(), ground.client("approver")
    name = f"waits{task}-{signals}".lower()
    plugin, key = await paying(ground, name), f"reset-{name}"
    receipt = await app.submit(plugin, key=key)
    [old] = await app.until_request(key)
    digest = (await app.request(key, old))["action_digest"]
    before = await app.events(key)
    cursor = (await app.status(key, after="0"))["next_cursor"]
    assert cursor == str(before[-1]["seq"])  # the mutant: without a reset a cursor is a number

    await reset(ground, key, task, signals=signals)
    new = await asked_anew(app, key, old)
    log = await app.events(key)
    assert numbers(log) == list(range(1, len(log) + 1))
    assert [event["type"] for event in log].count("job.recovered") == 1
    later = (await app.status(key, after=cursor))["events"]
    assert (later[0]["type"], later[0]["data"]) == ("job.recovered", {"reason": "reset"})
    assert later == log[-len(later) :]
    kept = log[: -len(later)]
    assert kept == before[: len(kept)]

    frames = await stream_to(app, key, cursor, len(later))
    assert [frame.event for frame in frames] == later
    assert not {frame.id for frame in frames} & {str(event["seq"]) for event in before}
    resumed = (await app.status(key, after=frames[0].id))["events"]
    assert resumed == later[1:]

    late = await approver.decide(key, old, "approve", digest=digest)
    assert problem(late) == (409, "request-voided")
    assert ground.effects.calls(name) == []
    again = await app.submit(plugin, key=key)
    assert (again.status_code, again.content) == (200, receipt.content)
    assert (await approver.decide(key, new, "approve")).status_code in (200, 202)
    assert (await app.until_ended(key, BUSY_S))["status"] == "succeeded"
    assert len(ground.effects.calls(name)) == 1


async def stream_to(app: Client, job: str, cursor: str, count: int) -> list[StreamEvent]:
    frames: list[StreamEvent] = []
    async with app.stream(job, after=cursor) as events:
        async for frame in events:
            frames.append(frame)
            if len(frames) == count:
                return frames
    return frames


@pytest.mark.parametrize("signals", [True, False])
async def test_an_ended_job_reset_to_any_of_its_tasks_writes_nothing_twice(ground: Stack, signals: bool) -> None:
    """Before and after the write, before and after the decision; each time somebody is asked, they say yes."""
    app, approver = ground.client(), ground.client("approver")
    name = f"ended-{signals}".lower()
    job = await app.accepted(await paying(ground, name))
    [request] = await app.until_request(job)
    assert (await approver.decide(job, request, "approve")).status_code in (200, 202)
    await app.until_ended(job, BUSY_S)
    first = ground.effects.calls(name)
    tasks = await tasks_of(ground, job)
    seen, resets = {request}, 0
    for task in range(len(tasks)):
        end = await app.status(job, after="0", limit=500)
        await reset(ground, job, min(task, len(await tasks_of(ground, job)) - 1), signals=signals)
        resets += 1
        while True:
            view = await app.until_status(job, "waiting_for_human", "succeeded", timeout=BUSY_S)
            if view["status"] == "succeeded" and view["last_event"] != end["last_event"]:
                break
            for one in view["pending"]:
                seen.add(one["request_id"])
                answer = await approver.decide(job, one["request_id"], "approve")
                assert answer.status_code in (200, 202, 409), answer.text
        later = (await app.status(job, after=end["next_cursor"], limit=500))["events"]
        assert later[0]["type"] == "job.recovered"
        log = await app.events(job)
        assert numbers(log) == list(range(1, len(log) + 1))
    assert ground.effects.calls(name) == first, "one write, whatever was reset"
    assert resets > 4


async def test_a_running_job_that_is_reset_is_followed_and_canceled(ground: Stack) -> None:
    ground.effects.set_behaviour("runs-on", Behaviour(answer=Answer.HOLD))
    app = ground.client()
    job = await app.accepted(await published(ground, [turn(call("runs-on")), final()], tool("runs-on")))
    await ground.effects.wait_for_calls("runs-on", job=job)
    async with app.stream(job) as events:
        await anext(events)
        await reset(ground, job, 0)
        await ground.effects.wait_for_calls("runs-on", 2, BUSY_S, job=job)
        async for frame in events:
            if frame.type == "job.recovered":
                break
        current = (await described(ground, job)).run_id
        stopped = await app.cancel(job)
        assert stopped.status_code == 202
        assert (await app.until_ended(job, BUSY_S))["status"] == "canceled"
        rest = [frame.type async for frame in events]
        assert rest[-1] == "job.canceled"
    ground.effects.release("runs-on")
    now = await described(ground, job)
    assert (now.run_id, now.status and now.status.name) == (current, "CANCELED")


async def test_without_a_worker_a_reset_is_told_and_asks_nobody(ground: Stack) -> None:
    app, approver = ground.client(), ground.client("approver")
    job = await app.accepted(await paying(ground, "nobody"))
    [old] = await app.until_request(job)
    digest = (await app.request(job, old))["action_digest"]
    kill_workers(ground)
    try:
        await reset(ground, job, -1)
        view = await app.status(job)
        told = view["last_event"]
        assert (told["seq"], told["type"], told["data"]) == (None, "job.recovered", {"reason": "reset"})
        assert (view["pending"], view["status"]) == ([], "running")
        assert (await app.status(job, after=view["next_cursor"]))["events"] == []
        assert problem(await approver.decide(job, old, "approve", digest=digest)) == (409, "request-voided")
    finally:
        await new_worker(ground)
    new = await asked_anew(app, job, old)
    assert (await approver.decide(job, new, "approve")).status_code in (200, 202)
    assert (await app.until_ended(job, BUSY_S))["status"] == "succeeded"
    assert len(ground.effects.calls("nobody")) == 1


async def test_a_terminated_job_says_so_and_goes_on_when_it_is_reset(ground: Stack) -> None:
    app, approver = ground.client(), ground.client("approver")
    job = await app.accepted(await paying(ground, "terminated"))
    [old] = await app.until_request(job)
    async with app.stream(job) as events:
        await on_job(ground, job, "workflow", "terminate", "--reason", "secret words of an operator")
        frames = [frame async for frame in events]
    assert (frames[-1].id, frames[-1].type, frames[-1].event["seq"]) == ("end", "job.failed", None)
    assert frames[-1].event["data"] == {"code": "ended_by_operator"}
    ended = await app.status(job)
    assert (ended["status"], ended["failure"]["code"], ended["pending"]) == ("failed", "ended_by_operator", [])
    for _ in range(2):
        stopped = await app.cancel(job)
        assert (stopped.status_code, stopped.json()["status"]) == (200, "failed")
        assert stopped.json()["finished_at"] == ended["finished_at"]
    assert {**await app.status(job), "as_of": None} == {**ended, "as_of": None}
    assert [frame.id for frame in await app.streamed(job)][-1] == "end"
    assert (await app.status(job, after="end"))["events"] == []

    await reset(ground, job, 0)
    new = await asked_anew(app, job, old)
    assert (await app.status(job, after="end"))["events"][0]["type"] == "job.recovered"
    assert (await approver.decide(job, new, "approve")).status_code in (200, 202)
    assert (await app.until_ended(job, BUSY_S))["status"] == "succeeded"
    assert len(ground.effects.calls("terminated")) == 1


async def test_of_two_resets_each_has_its_own_cursors(ground: Stack) -> None:
    app = ground.client()
    job = await app.accepted(await paying(ground, "twice"))
    ids = await app.until_request(job)
    cursors = [(await app.status(job, after="0"))["next_cursor"]]
    for count in (1, 2):
        await reset(ground, job, -1)
        ids.append(await asked_anew(app, job, *ids))
        await words_of_reset(app, job, count)
        cursors.append((await app.status(job, after="0"))["next_cursor"])
    assert len(set(cursors)) == len(set(ids)) == 3
    log = await app.events(job)
    for cursor in cursors[:2]:
        events = (await app.status(job, after=cursor))["events"]
        assert events[0]["type"] == "job.recovered"
        assert events == log[-len(events) :]
    assert (await app.status(job, after=cursors[2]))["events"] == []
    assert problem(await app.http.get(f"/v1/jobs/{job}?after=3.x-1")) == (400, "cursor-invalid")
    await app.cancel(job)
    await app.until_ended(job, BUSY_S)
