"""Who is asking, and when: job, attempt and time of a running activity, from the engine and never from an input."""

from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime

import structlog
from temporalio import activity

from gateway.calls.engine_clock import EngineClock
from gateway.ledger.receipts import ReceiptRow
from workflows.contract.errors import StepCode, StepError
from workflows.contract.ids import JobId, Workspace, split_workflow_id
from workflows.contract.steps import WORKFLOW_TYPE

_CLOCK: ContextVar[EngineClock] = ContextVar("engine_clock")


@dataclass(frozen=True, slots=True)
class Attempt:
    """One process's try at a step; `number` counts the engine's attempts at the same activity."""

    workspace: Workspace
    job_id: JobId
    run_id: str
    activity_id: str
    number: int
    clock: EngineClock = field(default_factory=EngineClock, compare=False)

    @property
    def key(self) -> str:
        """The job's place in the order of a group commit."""
        return f"{self.workspace}.{self.job_id}"


def begin(clock: EngineClock) -> None:
    """An attempt has just arrived: from here on it goes by `clock`."""
    clock.heard(activity.info().started_time)
    _CLOCK.set(clock)


def now() -> datetime:
    """Of the running attempt; outside of one, this machine's."""
    clock = _CLOCK.get(None)
    return datetime.now(UTC) if clock is None else clock.now()


def current_attempt() -> Attempt:
    """Raises StepError `no_receipt` for an activity that no job's workflow scheduled."""
    info = activity.info()
    ids = split_workflow_id(info.workflow_id or "")
    if ids is None or info.workflow_type != WORKFLOW_TYPE or info.workflow_run_id is None:
        raise StepError(StepCode.NO_RECEIPT, "This was not started by an admitted job; nothing was called.")
    return Attempt(*ids, info.workflow_run_id, info.activity_id, info.attempt, _CLOCK.get(None) or EngineClock())


def name_job(row: ReceiptRow) -> None:
    """From now on every log line of this step says on whose authority it runs, who caused it, and what it is."""
    caused = {} if row.initiator is None else {"initiator": f"{row.initiator['kind']}:{row.initiator['id']}"}
    structlog.contextvars.bind_contextvars(
        workspace=row.workspace, principal=row.principal, plugin=f"{row.plugin}@{row.version}", **caused
    )
