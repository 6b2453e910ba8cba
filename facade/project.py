"""Facts in, the public view out. Pure: the same facts and the same `now` always give the same answer.

Rules it keeps: an ended execution is ended whatever else is said; of open ones the freshest account wins, and the
`view` query's where it is at least as fresh; the ledger owns the cancel time; nothing is silent; an answer with a
worker and one without differ only in events, cursor and source.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from pydantic import JsonValue

from facade.advice import advise
from facade.cursors import cursor_at, write_cursor
from facade.reader import Ending, Execution, LedgerFacts, ReceiptFacts, Writes
from facade.views import (
    ArtifactAnswer,
    EventAnswer,
    FailureAnswer,
    JobAnswer,
    NextAction,
    PendingRequest,
    PluginAnswer,
    UsageAnswer,
)
from workflows.contract.errors import FailureCode, ProblemCode, Refused
from workflows.contract.events import Event, EventType
from workflows.contract.job import TERMINAL, EndRecord, Executed, Failure, JobView, Progress, Recovery, Status
from workflows.contract.steps import ViewOutput
from workflows.opening import queued_view


@dataclass(frozen=True, slots=True)
class Look:
    """All that one look at the engine and the blobs brought; what was not needed stays at its default."""

    execution: Execution | None
    view: ViewOutput | None = None
    progress: Progress | None = None
    """The newest step's, from the history, where `describe` shows no step in flight."""
    record: EndRecord | None = None
    """From the close event of a completed or failed execution."""
    writes: Writes | None = None
    """Of a job that has ended, where its record leaves that open."""
    result: JsonValue = None


_GONE = NextAction(code="none", message="The content of this job was erased.")


def project(look: Look, ledger: LedgerFacts, now: datetime) -> JobAnswer | Refused:
    """The answer of GET /v1/jobs/{job_id} without events, or why there is none."""
    if ledger.receipt is None:
        return not_found()
    if look.execution is None:
        return no_execution(ledger.receipt)
    memo, view = look.execution.memo, state_of(look)
    opened = view.status not in TERMINAL
    stopped = opened and ledger.stop_at is not None
    if opened and not stopped and look.execution.workflow_task_failing:
        view = view.model_copy(update={"failure": _INCOMPATIBLE, "recovery": "needs_person"})
    status = Status.CANCELING if stopped else view.status
    undecidable = stopped or not opened or ledger.revoked_at is not None
    asked = () if undecidable else tuple(r for r in view.requests if r.state == "pending")
    overdue = opened and now > memo.deadline
    ran = executed(look, view)
    erased = ledger.receipt.erased_at is not None
    return JobAnswer(
        job_id=ledger.receipt.job_id,
        status=status,
        mode=memo.mode,
        eligibility=view.eligibility,
        blocker=view.blocker,
        executed=ran,
        recovery="automatic" if stopped else _recovery(view, ran),
        overdue=overdue,
        next_action=_GONE
        if erased
        else advise(view, status, memo.mode, asked, overdue=overdue, in_doubt=look.writes == "not_known"),
        last_event=EventAnswer.of(_word_of_reset(look.execution) if unheard(look) else view.last_event),
        pending=tuple(PendingRequest.of(request) for request in asked),
        plugin=PluginAnswer.of(memo.plugin),
        accepted_at=memo.accepted_at,
        started_at=view.started_at,
        finished_at=view.finished_at,
        deadline=memo.deadline,
        cancel_requested_at=ledger.stop_at or view.cancel_requested_at,
        usage=UsageAnswer.of(view.usage),
        failure=None if view.failure is None else FailureAnswer(code=view.failure.code, message=view.failure.message),
        result=None if erased else _result(look, view),
        result_url=f"/v1/jobs/{ledger.receipt.job_id}/result",
        artifacts=() if erased else tuple(ArtifactAnswer.of(artifact) for artifact in view.artifacts),
        delivery=view.delivery,
        retry_of=memo.retry_of,
        session=memo.session,
        labels=memo.labels,
        as_of=now,
        source="recorded",
        next_cursor=write_cursor(cursor_at(view.last_event.seq, view.resets)),
    )


def _recovery(view: JobView, ran: Executed) -> Recovery:
    """What a job that has ended left to a person is over once its writes are known."""
    return view.recovery if view.status not in TERMINAL or ran == "unknown" else "none"


def _result(look: Look, view: JobView) -> JsonValue:
    return look.result if view.plan is None else {"planned": [tool.model_dump(mode="json") for tool in view.plan]}


ERASED_TITLE = "(erased)"


def content_erased(receipt: bytes) -> Refused:
    """What asks for a job's content gets, once that is gone."""
    detail = "The content of this job was erased; its receipt remains."
    return Refused(ProblemCode.JOB_EXPIRED, detail, receipt=json.loads(receipt))


def not_found() -> Refused:
    return Refused(ProblemCode.NOT_FOUND, "There is no such job.")


def no_execution(receipt: ReceiptFacts) -> Refused:
    """What a receipt without an execution means (design.md section 6, receipt protocol, Reads)."""
    if receipt.confirmed_at is not None:
        return Refused(
            ProblemCode.JOB_EXPIRED,
            "The job ended and its record has passed retention; its receipt remains.",
            receipt=json.loads(receipt.receipt),
        )
    if receipt.refused_at is not None:
        return not_found()
    return Refused(
        ProblemCode.ADMISSION_UNKNOWN,
        "The key is reserved; it is not yet known whether the job started. Send the same submission again.",
        retry_after_s=1,
    )


def state_of(look: Look) -> JobView:
    """The job's view by the freshest account. `look.execution` must be there."""
    execution = look.execution
    assert execution is not None
    told = [queued_view(execution.memo)]
    told += [record.view for record in (execution.recorded, look.record) if record is not None]
    told += [look.view.view] if look.view is not None else []
    newest = max(map(era, told))
    told = [view for view in told if era(view) == newest]
    if execution.ending is not None or told[-1].status in TERMINAL:
        ended = next((view for view in reversed(told) if view.status in TERMINAL), None)
        return ended if ended is not None else _ended_by_engine(execution, _freshest(told, look), look)
    view = _freshest(told, look)
    return _asked_anew(view) if _not_told_yet(execution, view) else view


def era(view: JobView) -> datetime:
    """When the log of this view began: of two accounts of a job, the one of an older log counts no more."""
    return view.resets[-1].at if view.resets else datetime.min.replace(tzinfo=UTC)


def unheard(look: Look) -> bool:
    """Whether an operator reset the job and no worker has taken note of it yet."""
    execution = look.execution
    return execution is not None and execution.ending is None and _not_told_yet(execution, state_of(look))


def _not_told_yet(execution: Execution, view: JobView) -> bool:
    return execution.reset_at is not None and era(view) < execution.reset_at


def _word_of_reset(execution: Execution) -> Event:
    return Event(
        seq=None,
        at=execution.reset_at or execution.memo.accepted_at,
        type=EventType.JOB_RECOVERED,
        message="An operator reset the job; it goes on from an earlier point.",
        data={"reason": "reset"},
    )


def _asked_anew(view: JobView) -> JobView:
    """Requests from before a reset are void, and asked again by the worker that takes note of it."""
    void = tuple(r.model_copy(update={"state": "voided"}) if r.state == "pending" else r for r in view.requests)
    status = Status.RUNNING if view.status is Status.WAITING_FOR_HUMAN else view.status
    return view.model_copy(update={"requests": void, "status": status, "recovery": "automatic"})


def ended(look: Look) -> bool:
    return look.execution is not None and state_of(look).status in TERMINAL


def executed(look: Look, view: JobView) -> Executed:
    """no until a worker started a model or tool call; unknown while one that may have started can not be seen."""
    execution = look.execution
    assert execution is not None
    if look.writes == "not_known":
        return "unknown"
    # The first step asks the model: one that nobody saw is no write, and whoever writes has seen it end.
    if view.executed == "unknown" and (look.writes == "known" or (look.writes == "none" and view.usage.steps > 1)):
        return "yes"
    if view.executed != "no":
        return view.executed
    newest = None if look.progress is None else look.progress.event
    if newest is not None and (newest.type is not EventType.STEP_STARTED or newest.data.get("turn", 1) > 1):
        return "yes"  # a step before the newest one had ended
    if view.status in TERMINAL:
        if newest is None:
            return "no"
        failed = view.failure.code if view.failure is not None else None
        return "yes" if failed in (FailureCode.MODEL_FAILED, FailureCode.TOOL_FAILED) else "unknown"
    steps = [pending for pending in execution.pending if pending.progress is not None or pending.activity in STEPS]
    if view.last_event.type is EventType.ATTEMPT_REPLACED:
        return "yes"
    if any(step.started or step.activity != "model" for step in steps):  # what is no model step comes after one
        return "yes"
    return "yes" if newest is not None and not steps else "no"


STEPS = frozenset({"model", "tool"})
"""The activities that are calls to the outside; the others read the ledger."""


def _freshest(told: list[JobView], look: Look) -> JobView:
    """The newest whole view, with last event and usage of a step that started after it."""
    execution = look.execution
    assert execution is not None
    view = max(reversed(told), key=lambda one: one.last_event.seq or 0)
    steps = [pending.progress for pending in execution.pending if pending.progress is not None]
    steps += [look.progress] if look.progress is not None else []
    newest = max(steps, key=lambda step: step.event.seq or 0, default=None)
    if newest is None or (newest.event.seq or 0) <= (view.last_event.seq or 0):
        return view
    return view.model_copy(update={"last_event": newest.event, "usage": newest.usage})


_INCOMPATIBLE = Failure(
    code=FailureCode.INCOMPATIBLE_VERSION, message="The version of Jobgate that runs now can not go on with this job."
)
_INTERNAL = Failure(code=FailureCode.INTERNAL, message="The job ended by an internal fault.")
_FAILURES: Mapping[Ending, Failure | None] = {
    "completed": _INTERNAL,
    "failed": _INTERNAL,
    "canceled": None,
    "terminated": Failure(code=FailureCode.ENDED_BY_OPERATOR, message="An operator ended this job."),
    "timed_out": Failure(code=FailureCode.DEADLINE_EXCEEDED, message="The deadline passed before the job was done."),
}


def _ended_by_engine(execution: Execution, view: JobView, look: Look) -> JobView:
    """The end that no workflow wrote: terminated, timed out, or closed before its first word."""
    closed_at = execution.closed_at or view.last_event.at
    failure = _FAILURES.get(execution.ending or "failed")
    if failure is None:
        status, event, message = Status.CANCELED, EventType.JOB_CANCELED, "Canceled."
    else:
        status, event, message = Status.FAILED, EventType.JOB_FAILED, f"Failed: {failure.message}"
    data = {} if failure is None else {"code": failure.code}
    in_doubt = look.writes == "not_known" or view.executed == "unknown"
    return view.model_copy(
        update={
            "status": status,
            "last_event": Event(seq=None, at=closed_at, type=event, message=message, data=data),
            "recovery": "needs_person" if failure is not None and in_doubt else "none",
            "failure": failure,
            "finished_at": closed_at,
        }
    )
