"""Which build a job goes on with, whether any can, and what is told of one that none can go on with."""

from dataclasses import replace

import pytest
from temporalio.api.enums.v1 import VersioningBehavior, WorkflowTaskFailedCause
from temporalio.api.history.v1 import (
    HistoryEvent,
    WorkflowExecutionTerminatedEventAttributes,
    WorkflowTaskCompletedEventAttributes,
    WorkflowTaskFailedEventAttributes,
    WorkflowTaskTimedOutEventAttributes,
)
from temporalio.api.workflowservice.v1 import DescribeWorkflowExecutionResponse
from temporalio.worker import WorkerDeploymentConfig

from facade.project import Look, project
from facade.views import JobAnswer
from gateway.ledger.authorities import insert_authority, mark_ended
from gateway.ledger.engine import Ledger
from gateway.ledger.receipts import reserve
from gateway.ledger.stops import open_stops, stop_job
from gateway.records import STOPPED, ended_for_stop, pinned_build, task_failed
from gateway.settings import load_settings
from gateway.versioning import deployment_of
from tests.unit.facts import NOW, T0, execution, view
from tests.unit.facts import ledger as facts
from tests.unit.ledger_rows import APP, AT, DEMO, SECOND, authority, receipt
from workflows.contract.errors import FailureCode
from workflows.contract.ids import JobId
from workflows.contract.job import Status

FAILING = replace(execution(view(Status.WAITING_FOR_HUMAN)), workflow_task_failing=True)
COMPLETED = HistoryEvent(workflow_task_completed_event_attributes=WorkflowTaskCompletedEventAttributes())
TIMED_OUT = HistoryEvent(workflow_task_timed_out_event_attributes=WorkflowTaskTimedOutEventAttributes())


def failed(cause: "WorkflowTaskFailedCause.ValueType") -> HistoryEvent:
    return HistoryEvent(workflow_task_failed_event_attributes=WorkflowTaskFailedEventAttributes(cause=cause))


MISFIT = failed(WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_NON_DETERMINISTIC_ERROR)
BROKEN = failed(WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_WORKFLOW_WORKER_UNHANDLED_FAILURE)
RESET = failed(WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_RESET_WORKFLOW)


def test_an_open_job_that_nothing_can_go_on_with_says_so_and_stays_open() -> None:
    found = project(Look(FAILING), facts(), NOW)
    assert isinstance(found, JobAnswer)
    assert found.failure is not None
    assert (found.status, found.failure.code) == (Status.WAITING_FOR_HUMAN, FailureCode.INCOMPATIBLE_VERSION)
    assert (found.recovery, found.next_action.code, found.finished_at) == ("needs_person", "ask_operator", None)


def test_once_it_is_canceled_or_has_ended_that_is_told_instead() -> None:
    stopped = project(Look(FAILING), facts(stop_at=T0), NOW)
    ended = project(Look(replace(FAILING, ending="canceled", closed_at=NOW)), facts(stop_at=T0), NOW)
    assert isinstance(stopped, JobAnswer)
    assert isinstance(ended, JobAnswer)
    assert (stopped.status, stopped.failure, stopped.recovery) == (Status.CANCELING, None, "automatic")
    assert (ended.status, ended.failure) == (Status.CANCELED, None)


@pytest.mark.parametrize(
    ("newest_first", "told"),
    [
        ([MISFIT, COMPLETED], True),
        ([BROKEN, COMPLETED], True),
        ([TIMED_OUT, MISFIT, COMPLETED], True),
        ([COMPLETED, MISFIT], False),
        ([TIMED_OUT, COMPLETED], False),
        ([RESET, COMPLETED], False),
        ([], False),
    ],
)
def test_only_a_task_that_failed_in_a_worker_since_the_last_good_one_counts(
    newest_first: list[HistoryEvent], told: bool
) -> None:
    assert task_failed(newest_first) is told


def test_only_our_own_end_of_a_stopped_job_is_a_cancel() -> None:
    def terminated(reason: str) -> HistoryEvent:
        attributes = WorkflowExecutionTerminatedEventAttributes(reason=reason)
        return HistoryEvent(workflow_execution_terminated_event_attributes=attributes)

    assert [ended_for_stop(terminated(reason)) for reason in (STOPPED, "", "an operator's")] == [True, False, False]


def test_a_job_waits_for_its_build_until_it_is_let_go() -> None:
    found = DescribeWorkflowExecutionResponse()
    assert pinned_build(found) is None
    versioning = found.workflow_execution_info.versioning_info
    versioning.behavior = VersioningBehavior.VERSIONING_BEHAVIOR_PINNED
    versioning.deployment_version.build_id = "0.1.0+abc"
    assert pinned_build(found) == "0.1.0+abc"
    versioning.versioning_override.auto_upgrade = True
    assert pinned_build(found) is None


@pytest.mark.parametrize(
    ("given", "versioned"),
    [
        ({"development": True}, False),
        ({"development": True, "set_current": True}, True),
        ({"development": True, "versioned": True}, True),
        ({"development": False}, True),
        ({"development": False, "versioned": False}, False),
    ],
)
def test_builds_are_pinned_outside_development_or_where_one_asks(given: dict[str, bool], versioned: bool) -> None:
    deployment = deployment_of(load_settings(**given), "0.1.0+abc")
    assert isinstance(deployment, WorkerDeploymentConfig) is versioned


async def test_stops_of_jobs_that_have_not_ended_are_found_once_they_are_old_enough(ledger: Ledger) -> None:
    jobs = [JobId(name) for name in ("stopped", "stopped-later", "ended", "open")]
    for job in jobs:
        await ledger.write(lambda conn, job=job: reserve(conn, receipt(job)))
        await ledger.write(lambda conn, job=job: insert_authority(conn, authority(job)))
    for job, at in zip(jobs[:3], (AT, AT + 2 * SECOND, AT), strict=True):
        await ledger.write(lambda conn, job=job, at=at: stop_job(conn, DEMO, job, by=APP, at=at))
    await ledger.write(lambda conn: mark_ended(conn, [(DEMO, JobId("ended"))], AT))

    async def found(before: int) -> list[str]:
        rows = await ledger.read(lambda conn: open_stops(conn, before=AT + before * SECOND, limit=10))
        return [row.job_id for row in rows]

    assert await found(0) == []
    assert await found(1) == ["stopped"]
    assert await found(3) == ["stopped", "stopped-later"]
    assert await ledger.read(lambda conn: len(open_stops(conn, before=AT + 3 * SECOND, limit=1))) == 1
