"""Workers die, freeze and are stopped in the middle of a step: a write leaves once, and no deploy is a cancel."""

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import pytest

from gateway.ledger.decisions import VoteRow, cast_vote
from gateway.ledger.effects import list_effects
from tests.conftest import FreshStack
from tests.rig.doorstep import DEMO, Doorstep, Published
from tests.rig.effect_log import Answer, Behaviour
from tests.rig.plugins import ALLOW_ALL, ASK_ALL, call, final, tool, turn
from tests.rig.stack import Stack
from tests.rig.waiting import wait_until
from workflows.contract.events import EventType
from workflows.contract.ids import JobId, PrincipalId
from workflows.contract.job import EndRecord, OpenRequest, Status
from workflows.contract.steps import DecisionHint

SHORT_HEARTBEAT_S = 1.5


@asynccontextmanager
async def rig(
    fresh_stack: FreshStack, effect: str, *, policy: str = ALLOW_ALL, **settings: str
) -> AsyncGenerator[tuple[Stack, Doorstep, Published]]:
    """A stack with one worker and no API, and a plugin whose jobs call the tool `t` once."""
    stack = await fresh_stack(apis=0, workers=1, settings=settings)
    doorstep = await Doorstep.open(stack.settings)
    plugin = await doorstep.publish(
        [turn(call("t", {"n": 1})), final()],
        tools=[tool("t", effect, timeout_seconds=120)],  # a frozen worker keeps its polls, so takeover may take long
        tools_url=stack.effects.url,
        policy=policy,
    )
    yield stack, doorstep, plugin
    await doorstep.close()


async def successor(stack: Stack) -> None:
    await stack.until_polling(stack.add_worker())


def lost_attempts(record: EndRecord) -> list[Any]:
    return [event.data["reason"] for event in record.events if event.type is EventType.ATTEMPT_REPLACED]


async def state_of(doorstep: Doorstep, job: JobId) -> tuple[str, int]:
    (row,) = await doorstep.ledger.read(lambda conn: list_effects(conn, DEMO, job))
    return row.state, row.epoch


async def test_a_write_whose_worker_died_is_unknown_and_not_repeated(fresh_stack: FreshStack) -> None:
    async with rig(fresh_stack, "write") as (stack, doorstep, plugin):
        stack.effects.set_behaviour("t", Behaviour(answer=Answer.HOLD))
        job = await doorstep.start(plugin, heartbeat_s=SHORT_HEARTBEAT_S)
        await stack.effects.wait_for_calls("t")
        stack.workers[0].kill()
        await successor(stack)
        asked = await wait_until(lambda: asked_of_people(doorstep, job), 30, what="a person is asked")
        assert (asked.kind, asked.tool) == ("reconciliation", "t")
        assert len(stack.effects.calls("t")) == 1
        assert await state_of(doorstep, job) == ("unknown", 1)


async def test_an_idempotent_write_whose_worker_died_goes_again_under_the_same_key(fresh_stack: FreshStack) -> None:
    async with rig(fresh_stack, "idempotent_write") as (stack, doorstep, plugin):
        stack.effects.set_behaviour("t", Behaviour(answer=Answer.HOLD, times=1))
        job = await doorstep.start(plugin, heartbeat_s=SHORT_HEARTBEAT_S)
        await stack.effects.wait_for_calls("t")
        stack.workers[0].kill()
        await successor(stack)
        assert (await doorstep.end(job)).view.status is Status.SUCCEEDED
        first, second = stack.effects.calls("t")
        assert (first.epoch, second.epoch) == (1, 2)
        assert first.idempotency_key == second.idempotency_key
        assert await state_of(doorstep, job) == ("confirmed", 2)


async def test_a_frozen_attempt_that_wakes_late_sends_nothing(fresh_stack: FreshStack) -> None:
    """The ledger is held shut, so the first worker stands before its permit when it freezes; the second one sends."""
    async with rig(fresh_stack, "write", policy=ASK_ALL) as (stack, doorstep, plugin):
        first = stack.workers[0]
        job = await doorstep.start(plugin, heartbeat_s=SHORT_HEARTBEAT_S)
        async with begun_before_a_shut_ledger(stack, doorstep, job) as open_again:
            first.freeze()
            open_again()
        await successor(stack)
        assert (await doorstep.end(job)).view.status is Status.SUCCEEDED
        (sent,) = stack.effects.calls("t")
        first.resume()
        await wait_until(lambda: "step ended" in first.output, 60, what="the late attempt gives up")
        assert stack.effects.calls("t") == [sent]
        assert await state_of(doorstep, job) == ("confirmed", sent.epoch)


@pytest.mark.slow
async def test_what_a_frozen_worker_had_sent_counts_when_it_wakes_and_nobody_is_asked_any_more(
    fresh_stack: FreshStack,
) -> None:
    async with rig(fresh_stack, "write") as (stack, doorstep, plugin):
        first = stack.workers[0]
        stack.effects.set_behaviour("t", Behaviour(answer=Answer.HOLD))
        job = await doorstep.start(plugin, heartbeat_s=SHORT_HEARTBEAT_S)
        await stack.effects.wait_for_calls("t")
        first.freeze()
        await successor(stack)
        await wait_until(lambda: asked_of_people(doorstep, job), 60, what="a person is asked")
        assert await state_of(doorstep, job) == ("unknown", 1)
        stack.effects.release("t")
        first.resume()
        record = await doorstep.end(job)
        assert record.view.status is Status.SUCCEEDED, "nobody had to settle it"
        assert [request.state for request in record.view.requests] == ["voided"]
        assert await state_of(doorstep, job) == ("confirmed", 1)
        assert len(stack.effects.calls("t")) == 1


async def test_a_stopped_worker_ends_its_write_in_the_grace(fresh_stack: FreshStack) -> None:
    async with rig(fresh_stack, "write") as (stack, doorstep, plugin):
        stack.effects.set_behaviour("t", Behaviour(delay_seconds=3))
        job = await doorstep.start(plugin)
        await stack.effects.wait_for_calls("t")
        assert stack.workers[0].stop() == 0
        await successor(stack)
        record = await doorstep.end(job)
        assert record.view.status is Status.SUCCEEDED
        assert lost_attempts(record) == []
        assert len(stack.effects.calls("t")) == 1


async def test_a_step_that_outlasts_the_grace_is_lost_and_never_canceled(fresh_stack: FreshStack) -> None:
    async with rig(fresh_stack, "read", JOBGATE_WORKER_GRACE_S="0.3") as (stack, doorstep, plugin):
        stack.effects.set_behaviour("t", Behaviour(answer=Answer.HOLD, times=1))
        job = await doorstep.start(plugin)
        await stack.effects.wait_for_calls("t")
        assert stack.workers[0].stop() == 0
        await successor(stack)
        record = await doorstep.end(job)
        assert record.view.status is Status.SUCCEEDED
        assert lost_attempts(record) == ["lost"]
        assert len(stack.effects.calls("t")) == 2


@pytest.mark.parametrize("effect", ["read", "write"])
async def test_a_ledger_that_is_shut_delays_and_repeats_nothing(fresh_stack: FreshStack, effect: str) -> None:
    async with rig(fresh_stack, effect, policy=ASK_ALL) as (stack, doorstep, plugin):
        job = await doorstep.start(plugin)
        async with begun_before_a_shut_ledger(stack, doorstep, job) as open_again:
            open_again()
        assert (await doorstep.end(job)).view.status is Status.SUCCEEDED
        assert len(stack.effects.calls("t")) == 1


async def test_an_answer_of_the_model_waits_for_a_ledger_that_is_shut_and_is_not_asked_for_again(
    fresh_stack: FreshStack,
) -> None:
    async with rig(fresh_stack, "read") as (stack, doorstep, plugin):
        row, start = await doorstep.reserve(plugin)
        with shut(stack) as open_again:
            await doorstep.engine.start(row.start_input, start)
            await wait_until(lambda: calling(doorstep, row.job_id, "model"), 20, what="the model step is begun")
            await asyncio.sleep(4)  # longer than the ledger's own patience
            open_again()
        record = await doorstep.end(row.job_id)
        assert record.view.status is Status.SUCCEEDED
        assert lost_attempts(record) == []


async def asked_of_people(doorstep: Doorstep, job: JobId) -> OpenRequest | None:
    execution = await doorstep.engine.describe(DEMO, job)
    recorded = None if execution is None else execution.recorded
    return next(iter(recorded.view.requests), None) if recorded is not None else None


@asynccontextmanager
async def begun_before_a_shut_ledger(
    stack: Stack, doorstep: Doorstep, job: JobId
) -> AsyncGenerator[Callable[[], None]]:
    """The job's one call is approved while its worker stands; then the ledger is shut and the call's step begins."""

    request = await wait_until(lambda: asked_of_people(doorstep, job), 20, what="a person is asked")
    vote = VoteRow(
        workspace=DEMO,
        job_id=job,
        request_id=request.request_id,
        principal=PrincipalId("approver"),
        decision="approve",
        action_digest=request.action_digest,
        reason=None,
        at=datetime.now(UTC),
    )
    stack.workers[0].freeze()
    await doorstep.ledger.write(lambda conn: cast_vote(conn, vote, quorum=1))
    with shut(stack) as open_again:
        await doorstep.engine.hint_decision(DEMO, job, DecisionHint(request_id=request.request_id))
        stack.workers[0].resume()
        await wait_until(lambda: calling(doorstep, job), 20, what="the tool step is begun")
        yield open_again


async def calling(doorstep: Doorstep, job: JobId, step: str = "tool") -> bool:
    execution = await doorstep.engine.describe(DEMO, job)
    if execution is None or execution.ending is not None:
        return execution is not None
    return any(pending.activity == step and pending.started for pending in execution.pending)


@contextlib.contextmanager
def shut(stack: Stack) -> Generator[Callable[[], None]]:
    """Holds the ledger's write lock; reads go on. The yielded function lets go."""
    holder = sqlite3.connect(stack.data / "ledger.db", isolation_level=None, timeout=10)
    try:
        holder.execute("BEGIN IMMEDIATE")
        yield lambda: holder.rollback()
    finally:
        holder.close()
