"""One absolute deadline: whatever a job does when it comes, nothing starts after it, and the end says why.

The effect log's clock is the judge. A call may arrive a moment after it was let go, so the judge allows for that.
"""

import asyncio
from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import pytest_asyncio

from tests.recovery.grounds import (
    READS_RUN_WRITES_ASK,
    kill_workers,
    new_worker,
    published,
    running_stack,
)
from tests.rig.client import Client, Json
from tests.rig.effect_log import Answer, Behaviour, Call
from tests.rig.plugins import call, final, tool, turn
from tests.rig.stack import Stack
from tests.rig.waiting import wait_until

ON_ITS_WAY = timedelta(seconds=0.25)
"""How long a permit lives: so long after the deadline may arrive what was let go before it."""
SOON_S = 10.0


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def ground(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Stack]:
    async with running_stack(tmp_path_factory.mktemp("deadline")) as stack:
        yield stack


def instant(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def late(calls: list[Call], deadline: datetime) -> list[Call]:
    """What arrived after the deadline and was not on its way."""
    return [sent for sent in calls if datetime.fromtimestamp(sent.wall_ns / 1e9, UTC) > deadline + ON_ITS_WAY]


async def exceeded(stack: Stack, app: Client, job: str, *, within_s: float = SOON_S) -> Json:
    """The end of a job that must fail at its deadline, not before it and not long after."""
    deadline = instant((await app.status(job))["deadline"])
    left = (deadline - datetime.now(UTC)).total_seconds()
    end = await app.until_ended(job, max(left, 0) + within_s + 20)
    assert (end["status"], end["failure"]["code"]) == ("failed", "deadline_exceeded"), end
    assert end["deadline"] == (await app.status(job))["deadline"]
    took = (instant(end["finished_at"]) - deadline).total_seconds()
    assert -0.05 <= took <= within_s, took
    assert (end["pending"], end["overdue"], end["recovery"]) == ([], False, recovery_of(end))
    assert late(stack.effects.calls(job=job), deadline) == []
    return end


def recovery_of(end: Json) -> str:
    return "needs_person" if end["executed"] == "unknown" else "none"


async def test_a_hung_read_does_not_hold_the_job(ground: Stack) -> None:
    ground.effects.set_behaviour("hung", Behaviour(answer=Answer.HOLD))
    plugin = await published(ground, [turn(call("hung")), turn(call("after")), final()], tool("hung"), tool("after"))
    app = ground.client()
    job = await app.accepted(plugin, timeout_seconds=4)
    await ground.effects.wait_for_calls("hung", job=job)
    assert (await exceeded(ground, app, job))["executed"] == "yes"
    ground.effects.release("hung")
    assert ground.effects.calls("after") == []


async def test_a_hung_write_is_unknown_and_not_repeated(ground: Stack) -> None:
    ground.effects.set_behaviour("hung-write", Behaviour(answer=Answer.HOLD))
    script = [turn(call("hung-write"), call("hung-write", {"n": 2})), final()]
    app = ground.client()
    job = await app.accepted(await published(ground, script, tool("hung-write", "write")), timeout_seconds=4)
    await ground.effects.wait_for_calls("hung-write", job=job)
    end = await exceeded(ground, app, job)
    assert end["executed"] == "unknown"
    ground.effects.release("hung-write")
    assert len(ground.effects.calls("hung-write")) == 1


async def test_a_person_who_never_comes(ground: Stack) -> None:
    plugin = await published(
        ground, [turn(call("unasked")), final()], tool("unasked", "write"), policy=READS_RUN_WRITES_ASK
    )
    app, approver = ground.client(), ground.client("approver")
    job = await app.accepted(plugin, timeout_seconds=4)
    [request] = await app.until_request(job)
    shown = await approver.request(job, request)
    await exceeded(ground, app, job)
    assert (await approver.decide(job, request, "approve", digest=shown["action_digest"])).status_code in (409, 410)
    assert (await app.event_types(job))[-2:] == ["request.voided", "job.failed"]
    assert ground.effects.calls("unasked") == []


async def test_an_endless_loop(ground: Stack) -> None:
    """The job works until the deadline and not beyond; the judge sees the calls when it is given an earlier one."""
    plugin = await published(ground, [turn(call("again"))], tool("again"), max_steps=100_000)
    app = ground.client()
    job = await app.accepted(plugin, timeout_seconds=5)
    end = await exceeded(ground, app, job)
    calls = ground.effects.calls("again", job=job)
    assert len(calls) > 1
    assert late(calls, instant(end["accepted_at"]))


@pytest.mark.parametrize(("retry_after", "attempts"), [(None, 3), ("60", 1)])
async def test_a_back_off_that_would_outlast_the_deadline_is_not_begun(
    ground: Stack, retry_after: str | None, attempts: int
) -> None:
    """Attempts begin after 0, 1, 3 and 7 s; the deadline lies before the last one."""
    name = f"failing-{attempts}"
    headers = {} if retry_after is None else {"Retry-After": retry_after}
    ground.effects.set_behaviour(name, Behaviour(status=503, headers=headers))
    app = ground.client()
    job = await app.accepted(await published(ground, [turn(call(name)), final()], tool(name)), timeout_seconds=5)
    end = await app.until_ended(job, 30)
    assert end["failure"]["code"] in ("tool_failed", "deadline_exceeded")
    deadline = instant(end["deadline"])
    assert instant(end["finished_at"]) <= deadline + timedelta(seconds=SOON_S)
    assert len(ground.effects.calls(name, job=job)) <= attempts
    assert late(ground.effects.calls(name, job=job), deadline) == []


async def untouched(ground: Stack, tools: str) -> tuple[Client, str, Json]:
    """A job that was accepted with no worker, seen past its deadline and before its end."""
    plugin = await published(ground, [turn(call(tools)), final()], tool(tools, "write"))
    app = ground.client()
    kill_workers(ground)
    job = await app.accepted(plugin, timeout_seconds=2)

    async def overdue() -> Json | None:
        view = await app.status(job)
        return view if view["overdue"] else None

    return app, job, await wait_until(overdue, 20, what=f"{job} is overdue")


async def test_without_a_worker_the_engine_ends_it_and_in_between_it_is_overdue(ground: Stack) -> None:
    app, job, view = await untouched(ground, "no-worker")
    assert (view["status"], view["failure"], view["executed"], view["source"]) == ("queued", None, "no", "recorded")
    assert view["next_action"]["message"]
    end = await exceeded(ground, app, job, within_s=10 + SOON_S)
    assert instant(end["finished_at"]) >= instant(end["deadline"]) + timedelta(seconds=8)
    assert end["executed"] == "no"
    assert (end["last_event"]["type"], end["last_event"]["seq"]) == ("job.failed", None)
    streamed = await app.streamed(job)
    assert [(frame.id, frame.type) for frame in streamed] == [("1", "job.queued"), ("end", "job.failed")]
    assert [event["seq"] for event in await app.events(job)] == [1, None]
    await new_worker(ground)
    assert {**await app.status(job), "as_of": None} == {**end, "as_of": None}
    assert ground.effects.calls("no-worker") == []


async def test_a_worker_that_comes_back_late_starts_nothing(ground: Stack) -> None:
    app, job, _view = await untouched(ground, "late-worker")
    worker = ground.add_worker()
    end = await exceeded(ground, app, job, within_s=10 + SOON_S)
    await ground.until_polling(worker)
    assert end["executed"] == "no"
    types = await app.event_types(job)
    assert "step.started" not in types
    assert types[-1] == "job.failed"
    assert ground.effects.calls("late-worker") == []


async def test_a_worker_that_died_in_a_read_and_comes_back_late_repeats_nothing(ground: Stack) -> None:
    ground.effects.set_behaviour("dies-in", Behaviour(answer=Answer.HOLD))
    plugin = await published(ground, [turn(call("dies-in")), final()], tool("dies-in"))
    app = ground.client()
    job = await app.accepted(plugin, timeout_seconds=6)
    [sent] = await ground.effects.wait_for_calls("dies-in", job=job)
    kill_workers(ground)
    deadline = instant((await app.status(job))["deadline"])
    while datetime.now(UTC) < deadline:
        await asyncio.sleep(0.1)
    assert (await app.status(job))["overdue"]
    worker = ground.add_worker()
    end: dict[str, Any] = await exceeded(ground, app, job, within_s=10 + SOON_S)
    await ground.until_polling(worker)
    assert end["executed"] in ("yes", "unknown")
    assert ground.effects.calls("dies-in") == [sent]
