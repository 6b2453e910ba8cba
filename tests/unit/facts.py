"""Facts for tests of the facade: a memo, views, executions and a ledger's word, each with one line to change it."""

from datetime import UTC, datetime, timedelta
from typing import Any

from facade.reader import Access, Ending, Execution, LedgerFacts, Pending, ReceiptFacts
from workflows.contract.errors import FailureCode
from workflows.contract.events import Event, EventType
from workflows.contract.gates import Eligibility
from workflows.contract.ids import BlobRef, Digest, JobId, PluginName, PrincipalId, RequestId, ToolName
from workflows.contract.job import (
    EndRecord,
    Failure,
    JobView,
    MemoStart,
    OpenRequest,
    PluginRef,
    Progress,
    Status,
    Usage,
)
from workflows.contract.steps import ViewOutput
from workflows.opening import queued_event

T0 = datetime(2030, 1, 31, 12, 0, tzinfo=UTC)
NOW = T0 + timedelta(minutes=1)
DIGEST = Digest("sha256:" + "4f" * 32)
JOB = JobId("k-1")
PLUGIN = PluginName("refund")
FULL_ACCESS = Access({"jobs:read": None, "jobs:decide": None})

MEMO = MemoStart(
    fingerprint=DIGEST,
    principal=PrincipalId("app"),
    plugin=PluginRef(name=PLUGIN, version="1.0.0", digest=DIGEST),
    mode="live",
    snapshot=DIGEST,
    accepted_at=T0,
    deadline=T0 + timedelta(hours=1),
    eligibility=Eligibility.LIVE_APPROVED,
    blocker=None,
)

REQUEST = OpenRequest(
    request_id=RequestId("r1-4f4f4f"),
    kind="approval",
    title="Refund",
    tool=ToolName("refunds.create"),
    call=0,
    action_digest=DIGEST,
    args_ref=BlobRef(DIGEST),
    opened_at=T0,
    expires_at=T0 + timedelta(hours=1),
)


def event(seq: int, type: EventType = EventType.STEP_STARTED, **data: Any) -> Event:
    return Event(seq=seq, at=T0 + timedelta(seconds=seq), type=type, message=f"event {seq}", data=data)


def events(first: int, last: int) -> tuple[Event, ...]:
    return tuple(queued_event(MEMO) if seq == 1 else event(seq) for seq in range(first, last + 1))


def view(status: Status = Status.RUNNING, seq: int = 5, **fields: Any) -> JobView:
    """A view whose last event has this seq; terminal ones have what a terminal view has."""
    ended = status in (Status.SUCCEEDED, Status.FAILED, Status.CANCELED)
    known: dict[str, Any] = {
        "status": status,
        "eligibility": Eligibility.LIVE_APPROVED,
        "executed": "yes",
        "last_event": event(seq),
        "started_at": T0,
        "finished_at": T0 + timedelta(seconds=seq) if ended else None,
        "failure": Failure(code=FailureCode.TOOL_FAILED, message="No.") if status is Status.FAILED else None,
    }
    return JobView(**{**known, **fields})


def live(of: JobView, held: tuple[Event, ...] = ()) -> ViewOutput:
    return ViewOutput(view=of, events=held, segments=(), last_seq=of.last_event.seq or 0)


def progress(seq: int, type: EventType = EventType.STEP_STARTED, steps: int = 0) -> Progress:
    return Progress(event=event(seq, type), usage=Usage(steps=steps))


def execution(recorded: JobView | EndRecord | None = None, ending: Ending | None = None, **more: Any) -> Execution:
    record = EndRecord(view=recorded) if isinstance(recorded, JobView) else recorded
    closed_at = NOW if ending is not None else None
    return Execution(ending=ending, closed_at=closed_at, memo=MEMO, recorded=record, **more)


def step(seq: int | None, *, started: bool = True, activity: str = "model", steps: int = 0) -> Pending:
    return Pending(activity, started, None if seq is None else progress(seq, steps=steps))


def ledger(*, confirmed: bool = True, refused: bool = False, stop_at: datetime | None = None) -> LedgerFacts:
    receipt = ReceiptFacts(
        seq=1,
        job_id=JOB,
        plugin=PLUGIN,
        principal=PrincipalId("app"),
        initiator=None,
        mode="live",
        session=None,
        receipt=b'{"job_id":"k-1"}',
        reserved_at=T0,
        confirmed_at=T0 if confirmed else None,
        refused_at=T0 if refused else None,
        deadline=MEMO.deadline,
    )
    return LedgerFacts(receipt, stop_at, FULL_ACCESS)
