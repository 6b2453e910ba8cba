"""A session and its snapshot while workers die: the open job is known without any, and a fresh one verifies first."""

from collections.abc import AsyncGenerator

import pytest
import pytest_asyncio

from tests.http.test_sessions import fresh_session
from tests.http.test_snapshot_damage import Damage, Parts, alter, delete, fragile_plugin
from tests.recovery.grounds import READS_RUN_WRITES_ASK, kill_workers, new_worker, published, running_stack
from tests.rig.client import fresh_key, problem
from tests.rig.plugins import call, final, tool, turn
from tests.rig.stack import Stack

BUSY_S = 60.0


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def ground(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Stack]:
    async with running_stack(tmp_path_factory.mktemp("sessions")) as stack:
        yield stack


async def test_the_open_job_of_a_session_is_known_without_a_worker(ground: Stack) -> None:
    plugin = await published(ground, [turn(call("pay")), final()], tool("pay", "write"), policy=READS_RUN_WRITES_ASK)
    app, session = ground.client(), fresh_session()
    waiting = await app.accepted(plugin, session=session)
    await app.until_request(waiting, BUSY_S)
    kill_workers(ground)
    try:
        shown = await app.get(f"/v1/sessions/{session}")
        assert (shown["open_job"], shown["jobs"]) == (waiting, [waiting])
        assert problem(await app.submit(plugin, session=session)) == (409, "session-busy")
        untouched = await app.accepted(plugin, session=fresh_session(), key=(queued := fresh_key()))
        other = (await app.status(untouched))["session"]
        assert (await app.get(f"/v1/sessions/{other}"))["open_job"] == queued
        [message] = (await app.get(f"/v1/sessions/{other}/messages"))["data"]
        assert (message["role"], message["job_id"]) == ("user", queued)
    finally:
        await new_worker(ground)
    for job in (waiting, untouched):
        await app.cancel(job)
        await app.until_ended(job, BUSY_S)
    assert (await app.get(f"/v1/sessions/{session}"))["open_job"] is None


DAMAGED: tuple[tuple[str, Damage], ...] = (
    ("pair", alter),
    ("file", delete),
    ("deployment", delete),
    ("pinned file", alter),
)


async def test_a_fresh_worker_takes_over_no_job_whose_snapshot_is_damaged(ground: Stack) -> None:
    """A part of each job's snapshot is damaged; one worker finds them all."""
    app, operator, approver = ground.client(), ground.client("operator"), ground.client("approver")
    receipts = {part: (await app.submit(await fragile_plugin(ground, operator))).json() for part, _ in DAMAGED}
    jobs: dict[str, str] = {part: receipt["job_id"] for part, receipt in receipts.items()}
    requests = {part: (await app.until_request(job, BUSY_S))[0] for part, job in jobs.items()}
    kill_workers(ground)
    ground.effects.reset()
    for part, damage in DAMAGED:
        damage(Parts(ground, receipts[part]).path(part))
        decided = await approver.decide(jobs[part], requests[part], "approve")
        assert decided.status_code in (200, 202), (part, decided.text)
    await new_worker(ground)
    for part, job in jobs.items():
        view = await app.until_ended(job, BUSY_S)
        assert (part, view["status"], view["failure"]["code"]) == (part, "failed", "snapshot_mismatch")
    assert ground.effects.calls() == []
