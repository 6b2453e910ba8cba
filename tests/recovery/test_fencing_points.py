"""A worker that stands still at every point of a permit's life, and wakes when its successor has gone on without it.

Its write is refused before it leaves, or had left once; its result counts only where nobody else's can. Two workers
share a task queue of the test's own, so each can be the other's successor; the jobs themselves run on a third one.
"""

import asyncio
import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio
from pydantic_core import to_json

from gateway.blobs import BlobMissing
from gateway.ledger.effects import EffectRow, list_effects
from tests.recovery.grounds import running_stack
from tests.recovery.stopping_worker import AWAKE, POINTS, STOPPING, Point
from tests.rig.doorstep import DEMO, Doorstep, Published
from tests.rig.plugins import ALLOW_ALL, call, final, fresh_name, tool, turn
from tests.rig.process import Process
from tests.rig.stack import Stack
from tests.rig.waiting import wait_until
from workflows.contract.events import EventType
from workflows.contract.ids import BlobRef, JobId, sha256_of, workflow_id
from workflows.contract.job import EndRecord, Status

pytestmark = pytest.mark.slow
HEARTBEAT_S = 1.5
QUEUE = "hands-that-stand"
OUTCOME: dict[Point, tuple[list[int], tuple[str, int]]] = {
    "unconnected": ([1], ("confirmed", 1)),
    "connected": ([1], ("confirmed", 1)),
    "asked": ([1], ("confirmed", 1)),
    "permitted": ([], ("failed", 1)),
    "sent": ([1], ("confirmed", 1)),
    "answered": ([1], ("confirmed", 1)),
    "committed": ([1], ("confirmed", 1)),
}
"""Of a `write`: the epochs of the calls that left, and the effect's state and epoch at the end."""
OUTCOME_AGAIN = {
    **OUTCOME,
    "permitted": ([2], ("confirmed", 2)),
    "sent": ([1, 2], ("confirmed", 2)),
    "answered": ([1, 2], ("confirmed", 2)),
}
"""The same of an `idempotent_write`."""
FIRST_KNOWS_IT: tuple[Point, ...] = ("permitted", "sent", "answered")
"""Where the ledger is told by the first worker alone what came of a `write`, as soon as it wakes."""


@dataclass
class Ground:
    stack: Stack
    doorstep: Doorstep
    hands: tuple[Process, Process]
    orders: Path

    async def standing(self, point: Point) -> Process:
        """The one of the two that has taken the order and stands."""

        def stands() -> Process | None:
            return next((one for one in self.hands if one.output.count(STOPPING) > one.output.count(AWAKE)), None)

        found = await wait_until(stands, 90, what=f"a worker stands at {point}")
        found.freeze()
        return found


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def ground(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Ground]:
    """One worker for the jobs, and two for their tools, of which each may stand still."""
    async with running_stack(tmp_path_factory.mktemp("points"), apis=0) as stack:
        doorstep = await Doorstep.open(stack.settings)
        orders = stack.folder / "orders"
        lanes = {"JOBGATE_LANES": json.dumps({"own": {"task_queue": QUEUE}}), "JOBGATE_LANE": "own"}
        command = ["-m", "tests.recovery.stopping_worker", "--orders", str(orders)]
        hands = tuple(
            Process(f"hands-{number}", command, stack.folder, environment={**stack.environment, **lanes})
            for number in range(2)
        )
        try:
            for one in hands:
                one.start()
            first, second = hands
            yield Ground(stack, doorstep, (first, second), orders)
            assert [await asyncio.to_thread(one.stop) for one in hands] == [0, 0]
        finally:
            for one in hands:
                one.kill()
            await doorstep.close()


async def published(stack: Stack, doorstep: Doorstep, name: str, effect: str) -> Published:
    return await doorstep.publish(
        [turn(call(name, {"n": 1})), final()],
        tools=[tool(name, effect, timeout_seconds=60)],
        tools_url=stack.effects.url,
        policy=ALLOW_ALL,
    )


async def started(doorstep: Doorstep, plugin: Published) -> JobId:
    row, start = await doorstep.reserve(plugin, heartbeat_s=HEARTBEAT_S, timeout_s=300)
    start = start.model_copy(update={"tool_queue": QUEUE})
    assert (await doorstep.engine.start(to_json(start), start)).outcome == "created"
    return row.job_id


async def effect_of(doorstep: Doorstep, job: JobId) -> EffectRow | None:
    rows = await doorstep.ledger.read(lambda conn: list_effects(conn, DEMO, job))
    assert len(rows) <= 1
    return rows[0] if rows else None


async def asked_about(doorstep: Doorstep, job: JobId) -> bool:
    execution = await doorstep.engine.describe(DEMO, job)
    assert execution is not None
    return execution.recorded is not None and any(
        request.kind == "reconciliation" and request.state == "pending" for request in execution.recorded.view.requests
    )


async def ended(doorstep: Doorstep, job: JobId) -> EndRecord:
    record = await doorstep.end(job)
    assert record.view.status is Status.SUCCEEDED, record.view.failure
    return record


@pytest.mark.parametrize("effect", ["write", "idempotent_write"])
@pytest.mark.parametrize("point", POINTS)
async def test_a_worker_that_wakes_behind_its_successor_changes_nothing(
    ground: Ground, point: Point, effect: str
) -> None:
    stack, doorstep = ground.stack, ground.doorstep
    name = fresh_name(f"stands-{point}")
    plugin = await published(stack, doorstep, name, effect)
    ground.orders.write_text(point)
    job = await started(doorstep, plugin)
    first = await ground.standing(point)
    try:
        if effect == "write" and point in FIRST_KNOWS_IT:
            await wait_until(lambda: asked_about(doorstep, job), 90, what="a person is asked what came of it")
            before = await effect_of(doorstep, job)
            assert before is not None
            assert (before.state, before.epoch) == ("unknown", 1)
            first.resume()
            await ended(doorstep, job)
        else:
            await ended(doorstep, job)
            was = first.output.count("step ended")
            first.resume()
            if point == "committed":
                await wait_until(lambda: first.output.count(STOPPING) == first.output.count(AWAKE), 60)
            else:
                await wait_until(lambda: first.output.count("step ended") > was, 60, what="the late attempt ends")
    finally:
        first.resume()
    epochs, outcome = (OUTCOME if effect == "write" else OUTCOME_AGAIN)[point]
    calls = stack.effects.calls(name)
    assert [sent.epoch for sent in calls] == epochs
    row = await effect_of(doorstep, job)
    assert row is not None
    assert (row.state, row.epoch) == outcome
    assert {sent.idempotency_key for sent in calls} <= {row.effect_id}
    if epochs == [1, 2]:
        await only_the_second_answer_is_kept(doorstep, row, name)


async def test_a_write_that_was_failed_by_hand_before_its_permit_is_closed_and_the_late_attempt_sends_nothing(
    ground: Ground,
) -> None:
    """An operator fails the attempt in the Temporal UI while it stands, and the engine had said yes to it before that.
    Nothing was sent, so nobody is asked; after the job was told so, nothing may be."""
    stack, doorstep = ground.stack, ground.doorstep
    name = fresh_name("failed-by-hand")
    plugin = await published(stack, doorstep, name, "write")
    ground.orders.write_text("asked")
    job = await started(doorstep, plugin)
    first = await ground.standing("asked")
    try:
        id_ = workflow_id(DEMO, job)
        described = await doorstep.client.get_workflow_handle(id_).describe()
        [pending] = described.raw_description.pending_activities
        by_hand = doorstep.client.get_async_activity_handle(
            workflow_id=id_, run_id=described.run_id, activity_id=pending.activity_id
        )
        await by_hand.fail(RuntimeError("by hand"))
        record = await ended(doorstep, job)
        was = first.output.count("step ended")
        first.resume()
        await wait_until(lambda: first.output.count("step ended") > was, 60, what="the late attempt ends")
    finally:
        first.resume()
    [told] = [event for event in record.events if event.type is EventType.EFFECT_RECONCILED]
    assert told.data["outcome"] == "did_not_happen"
    assert record.view.requests == ()
    assert stack.effects.calls(name) == []
    row = await effect_of(doorstep, job)
    assert row is not None
    assert (row.state, row.epoch) == ("failed", 0)


async def only_the_second_answer_is_kept(doorstep: Doorstep, row: EffectRow, name: str) -> None:
    """The log counts its calls, so the two answers differ in one digit."""
    assert row.outcome_ref is not None
    folder = row.outcome_ref.removesuffix(row.outcome_ref.rpartition("/")[2])

    def answer(number: int) -> BlobRef:
        text = json.dumps({"ok": True, "tool": name, "n": number}, separators=(",", ":"))
        return BlobRef(f"{folder}{sha256_of(text.encode())}")

    assert answer(2) == row.outcome_ref
    await doorstep.blobs.get(DEMO, answer(2))
    with pytest.raises(BlobMissing):
        await doorstep.blobs.get(DEMO, answer(1))
