"""A history that no running version can go on with is said within a minute, stays cancelable, and outlives a rollback.

Besides: an API one model version ahead of its workers (B41), and a cancel that only the ledger heard of.
"""

from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from pathlib import Path

import pytest_asyncio

from gateway.ledger.engine import Ledger
from gateway.ledger.stops import stop_job
from tests.conftest import FreshStack
from tests.recovery.test_redeploy import BUSY_S, approved, asking, started, waiting
from tests.rig.builds import ONE_MORE_STEP, build
from tests.rig.client import Json
from tests.rig.stack import Stack
from tests.rig.waiting import wait_until
from workflows.contract.ids import JobId, PrincipalId, Workspace

DEMO = Workspace("demo")
WITHIN_S = 60.0
ONE_FIELD_MORE = {
    "workflows/contract/job.py": (
        "    state: LoopState | None = None\n\n\nDISPATCH",
        '    state: LoopState | None = None\n    newer: tuple[str, ...] = ("unheard", "of")\n\n\nDISPATCH',
    )
}
"""What an API of the next release might put into a job's start."""


@pytest_asyncio.fixture(loop_scope="session")
async def own(fresh_stack: FreshStack) -> AsyncGenerator[Stack]:
    yield await fresh_stack(workers=0, settings={"JOBGATE_SWEEP_S": "0.5"})


async def blocked(stack: Stack, job: str) -> Json:
    """The view as soon as it says that the job can not go on."""
    app = stack.client()

    async def told() -> Json | None:
        view = await app.status(job)
        return view if view["failure"] is not None else None

    return await wait_until(told, WITHIN_S + BUSY_S, every=0.2, what=f"{job} says that it can not go on")


async def test_an_incompatible_history_is_said_stays_cancelable_and_goes_on_after_a_rollback(
    own: Stack, tmp_path: Path
) -> None:
    old, new = build(tmp_path / "old", {}), build(tmp_path / "new", ONE_MORE_STEP)
    app, plugin = own.client(), await asking(own)
    worker = await started(own, old)
    kept, asked = await waiting(own, plugin)
    given_up, asked_too = await waiting(own, plugin)
    untouched, _ = await waiting(own, plugin)
    worker.kill()
    wrong = await started(own, new)
    await approved(own, kept, asked)
    await approved(own, given_up, asked_too)
    for job in (kept, given_up):
        view = await blocked(own, job)
        assert view["failure"]["code"] == "incompatible_version"
        assert view["status"] == "waiting_for_human"
        assert (view["recovery"], view["finished_at"]) == ("needs_person", None)
        assert view["next_action"]["code"] == "ask_operator"
        assert (await app.status(job, after="0"))["failure"] == view["failure"]
    assert (await app.status(untouched))["failure"] is None
    await waiting(own, plugin)  # new jobs run on the new code

    assert (await app.cancel(given_up)).status_code == 202
    end = await app.until_ended(given_up, BUSY_S)
    assert (end["status"], end["failure"]) == ("canceled", None)
    assert (await app.events(given_up))[-1]["type"] == "job.canceled"

    wrong.kill()
    await started(own, old)
    end = await app.until_ended(kept, BUSY_S)
    assert (end["status"], end["failure"]) == ("succeeded", None)
    assert [len(own.effects.calls("paid", job=job)) for job in (kept, given_up)] == [1, 0]


async def test_a_stop_whose_writer_died_before_it_told_the_engine_ends_its_job(own: Stack, tmp_path: Path) -> None:
    app, plugin = own.client(), await asking(own)
    await started(own, build(tmp_path / "now", {}))
    job, _ = await waiting(own, plugin)
    other, _ = await waiting(own, plugin)
    ledger = Ledger.open(own.settings.ledger_url)
    try:
        at = datetime.now(UTC)
        await ledger.write(lambda conn: stop_job(conn, DEMO, JobId(job), by=PrincipalId("app"), at=at))
    finally:
        await ledger.close()
    assert (await app.status(job))["status"] == "canceling"
    assert (await app.until_ended(job, BUSY_S))["status"] == "canceled"
    assert (await app.status(other))["status"] == "waiting_for_human"


async def test_workers_run_jobs_of_an_api_that_is_one_version_ahead(own: Stack, tmp_path: Path) -> None:
    newer = build(tmp_path / "newer", ONE_FIELD_MORE)
    ahead = own.add_api(newer.environment)
    await own.until_ready(ahead)
    await started(own, build(tmp_path / "now", {}))
    plugin = await asking(own)
    app = own.client(api=1)
    job = await app.accepted(plugin)
    [request] = await app.until_request(job, BUSY_S)
    await approved(own, job, request)
    assert (await app.until_ended(job, BUSY_S))["status"] == "succeeded"
    # The start holds what this worker has never heard of, so it was tolerated and not merely absent.
    history = (await own.engine()).get_workflow_handle(f"demo.{job}").fetch_history_events()
    start = (await anext(history)).workflow_execution_started_event_attributes
    assert b'"newer":["unheard","of"]' in start.input.payloads[0].data.replace(b" ", b"")
