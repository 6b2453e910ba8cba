"""At the deadline nothing new starts, whatever the job is waiting for, and the job says so."""

import pytest

from tests.rig.waiting import wait_until
from tests.workflow.hands import Fault, Hands, Held, call, done, final, turn
from tests.workflow.jobs import Ended, Job, Jobs
from workflows.contract.errors import StepCode
from workflows.loop import LAST_WORD

SOON_S = 1.0
"""A time-skipping server does not skip while an activity runs: these deadlines pass in real time."""


def assert_kept(job: Job, ended: Ended, at_most_late_s: float) -> None:
    assert ended.view.failure is not None
    assert ended.view.failure.code == "deadline_exceeded"
    assert ended.view.finished_at is not None
    late = (ended.view.finished_at - job.start.deadline).total_seconds()
    assert -0.01 <= late <= at_most_late_s


@pytest.mark.parametrize("silent", [False, True], ids=["that listens", "that hangs"])
async def test_deadline_passes_in_a_read(jobs: Jobs, silent: bool) -> None:
    hung = Held(done(), silent=silent)
    job = await jobs.start(
        Hands(model=[turn(1, call(0, "invoices.get"))], tools={"invoices.get": [hung]}), ends_in=SOON_S
    )
    await hung.entered.wait()
    ended = await job.end()
    hung.go.set()
    assert ended.story[3:] == [
        "step.finished turn 1: 1 calls",
        "tool.started invoices.get #0",
        "job.failed deadline_exceeded",
    ]
    assert_kept(job, ended, 1)
    assert job.hands.ran == ["model 1.1", "invoices.get 1"]


async def test_deadline_passes_while_the_model_thinks(jobs: Jobs) -> None:
    hung = Held(final(1), silent=True)
    job = await jobs.start(Hands(model=[hung]), ends_in=SOON_S)
    await hung.entered.wait()
    ended = await job.end()
    hung.go.set()
    assert ended.story[2:] == ["step.started turn 1", "job.failed deadline_exceeded"]
    assert_kept(job, ended, 1)


async def test_deadline_passes_in_a_hung_write_and_its_effect_is_unknown(jobs: Jobs) -> None:
    hung = Held(done(), silent=True)
    job = await jobs.start(
        Hands(model=[turn(1, call(0, "refunds.create", "write"))], tools={"refunds.create": [hung]}), ends_in=SOON_S
    )
    await hung.entered.wait()
    ended = await job.end()
    hung.go.set()
    assert ended.view.executed == "unknown"
    assert ended.view.recovery == "needs_person"
    assert ended.story[4:] == [
        "tool.started refunds.create #0",
        "effect.unknown refunds.create #0",
        "job.failed deadline_exceeded",
    ]
    assert_kept(job, ended, LAST_WORD.total_seconds() + 1)


async def test_deadline_passes_in_a_human_wait(skipping_jobs: Jobs) -> None:
    job = await skipping_jobs.start(Hands(model=[turn(1, call(0, "refunds.create", "write", ask=True))]), ends_in=600)
    [request] = await job.pending(1)
    ended = await job.end()
    assert ended.story[4:] == [
        "request.opened r1 approval refunds.create",
        "request.voided r1",
        "job.failed deadline_exceeded",
    ]
    assert_kept(job, ended, 1)
    assert job.hands.ran == ["model 1.1", f"read_decision {request} void"]


async def test_back_off_that_would_pass_the_deadline_is_not_begun(skipping_jobs: Jobs) -> None:
    faults = [Fault(StepCode.UNAVAILABLE) for _ in range(4)]
    job = await skipping_jobs.start(Hands(model=[*faults]), ends_in=2.5)
    ended = await job.end()
    assert ended.story[2:] == [
        "step.started turn 1",
        "attempt.replaced attempt 2: unavailable, 1 s",
        "job.failed model_failed",
    ]
    assert ended.view.finished_at is not None
    assert ended.view.finished_at <= job.start.deadline


async def test_deadline_passes_in_a_loop_that_never_ends(jobs: Jobs) -> None:
    job = await jobs.start(Hands(forever=lambda number: turn(number, call(0, "invoices.get"))), ends_in=SOON_S)
    ended = await job.end()
    assert ended.story[-1] == "job.failed deadline_exceeded"
    assert_kept(job, ended, 1)
    assert max(event.at for event in ended.record.events[:-1]) <= ended.record.events[-1].at
    started = [event.at for event in ended.record.events if event.type.endswith(".started")]
    assert max(started) < job.start.deadline


async def test_worker_that_comes_after_the_deadline_starts_nothing(jobs: Jobs) -> None:
    job = await jobs.start(Hands(model=[final(1)]), queue="deadline-late-worker", ends_in=0.3)

    async def passed() -> bool:
        return await jobs.now() > job.start.deadline

    await wait_until(passed)
    async with jobs.worker("deadline-late-worker"):
        ended = await job.end()
    assert job.hands.ran == []
    assert ended.story == ["job.queued", "job.failed deadline_exceeded"]
    assert (ended.view.executed, ended.view.started_at) == ("no", None)
