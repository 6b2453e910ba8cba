"""What a job is started with, what it carries over a roll-over, and what it shows: the models inside a history.

They tolerate unknown fields and only gain fields with defaults: gateway and worker may be one version apart. They hold
references and small verdicts, never inputs, prompts or tool results.
"""

from collections.abc import Mapping
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import PlainSerializer

from workflows.contract.carried import Carried
from workflows.contract.errors import FailureCode
from workflows.contract.events import Event, Timestamp
from workflows.contract.gates import Blocker, Eligibility, EligibilityFacts
from workflows.contract.ids import (
    BlobRef,
    Digest,
    EffectId,
    JobId,
    PluginName,
    PrincipalId,
    RequestId,
    ToolName,
    Workspace,
)

Mode = Literal["live", "dry_run"]
EffectClass = Literal["read", "idempotent_write", "write"]
Executed = Literal["no", "yes", "unknown"]
Recovery = Literal["automatic", "needs_person", "none"]
RequestKind = Literal["approval", "question", "reconciliation"]
RequestState = Literal["pending", "approved", "rejected", "answered", "settled", "expired", "voided"]
DecisionVerb = Literal["approve", "reject", "answer", "settle"]

Money = Annotated[Decimal, PlainSerializer(lambda d: f"{d:.4f}", return_type=str, when_used="json")]
"""US dollars; written with four decimals, kept exactly in between."""


class Status(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    WAITING_FOR_HUMAN = "waiting_for_human"
    CANCELING = "canceling"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELED = "canceled"


TERMINAL = frozenset({Status.SUCCEEDED, Status.FAILED, Status.CANCELED})


class Initiator(Carried):
    """Who or what caused the job: evidence, never authority."""

    kind: str
    id: str


class PluginRef(Carried):
    name: PluginName
    version: str
    digest: Digest


class Limits(Carried):
    """What a job may spend: steps and tokens are counts, duration is seconds, cost is US dollars; None = no limit."""

    max_steps: int
    max_duration_seconds: int
    max_tokens: int
    max_cost_usd: Money | None = None


class ApprovalRule(Carried):
    """Who may decide a tool's calls. No groups: anyone with `jobs:decide`. Expiry is in seconds; None = deadline."""

    groups: tuple[str, ...] = ()
    quorum: int = 1
    expires_in_seconds: int | None = None


class ToolRow(Carried):
    """One row of the dispatch table: all that the loop needs to know of a tool. `timeout_s` is in seconds."""

    kind: Literal["http", "mcp", "python", "builtin"]
    effect: EffectClass
    timeout_s: float
    approval: ApprovalRule = ApprovalRule()
    reconcile: ToolName | None = None
    event: str | None = None
    hidden: bool = False


class Usage(Carried):
    steps: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: Money = Decimal(0)


class OpenRequest(Carried):
    """Something a person must decide; the arguments are bytes behind `args_ref`, bound by `action_digest`."""

    request_id: RequestId
    kind: RequestKind
    title: str
    tool: ToolName
    call: int
    effect_id: EffectId | None = None
    action_digest: Digest
    args_ref: BlobRef
    approval: ApprovalRule = ApprovalRule()
    opened_at: Timestamp
    expires_at: Timestamp
    state: RequestState = "pending"
    decided_by: tuple[PrincipalId, ...] = ()
    decided_at: Timestamp | None = None


class Failure(Carried):
    code: FailureCode
    message: str


class PlannedTool(Carried):
    """What a dry run says of a tool: whether a person would be asked before a call (`policy`: as the access policy
    says of its arguments), and who may decide."""

    tool: ToolName
    kind: str = "http"
    effect: EffectClass
    asks: Literal["never", "always", "policy"] = "never"
    would_ask: str | None


class ArtifactRef(Carried):
    """Published bytes: registered, read back, and given out after authorising again. `name` is text, never a path."""

    artifact_id: str
    name: str
    bytes: int
    media_type: str
    digest: Digest


Delivery = Literal["none", "pending", "delivered"]
"""Of a result that is an artifact: `delivered` once it has been published and read back."""


class Reset(Carried):
    """An operator's reset: from the event `first` on the log is not the one that was told before; `tag` names it."""

    first: int
    tag: str
    at: Timestamp


class JobView(Carried):
    """A job as its workflow knows it: the `view` query's answer, the memo, and the end record, in one shape."""

    status: Status
    eligibility: Eligibility
    blocker: Blocker | None = None
    executed: Executed = "no"
    recovery: Recovery = "automatic"
    last_event: Event
    requests: tuple[OpenRequest, ...] = ()
    started_at: Timestamp | None = None
    finished_at: Timestamp | None = None
    cancel_requested_at: Timestamp | None = None
    usage: Usage = Usage()
    failure: Failure | None = None
    result_ref: BlobRef | None = None
    plan: tuple["PlannedTool", ...] | None = None
    artifacts: tuple[ArtifactRef, ...] = ()
    delivery: Delivery = "none"
    resets: tuple[Reset, ...] = ()


class SegmentRef(Carried):
    """Archived events `first`..`last` (inclusive) as a JSON array behind `ref`."""

    first: int
    last: int
    ref: BlobRef


class EndRecord(Carried):
    """What a closed execution keeps so that it reads in full without a worker: the view and the event tail.

    `requests_apart`: in a memo, the requests of the view have a place of their own, so that they are not written again
    with every event."""

    view: JobView
    segments: tuple[SegmentRef, ...] = ()
    events: tuple[Event, ...] = ()
    requests_apart: bool = False


class LoopState(Carried):
    """All that a roll-over carries."""

    view: JobView
    seq: int
    events: tuple[Event, ...]
    segments: tuple[SegmentRef, ...] = ()
    turn: int = 0
    step: int = 0
    requests_opened: int = 0
    refused_decisions: int = 0
    warned: tuple[str, ...] = ()
    asked: Mapping[str, int] = {}
    conversation: BlobRef | None = None
    results: tuple["CallResult", ...] = ()
    inbox: tuple[str, ...] = ()


class CallResult(Carried):
    """What one call of the last turn came to."""

    call: int
    tool: ToolName
    outcome: Literal["ok", "error", "refused", "rejected", "expired", "answered"]
    result_ref: BlobRef | None = None
    note: str | None = None


class JobStart(Carried):
    """The start input: references, limits, dispatch table (at most 32 KB). `conversation`: of its session so far.
    `tool_queue`: the task queue of the lane that tool calls are routed to, where it is not the job's own.

    `roll_over_after`: test knob, history events after which it rolls over; None = as the engine asks."""

    workspace: Workspace
    job_id: JobId
    principal: PrincipalId
    initiator: Initiator | None = None
    plugin: PluginRef
    snapshot: Digest
    mode: Mode
    facts: EligibilityFacts
    fingerprint: Digest
    accepted_at: Timestamp
    deadline: Timestamp
    limits: Limits
    tools: Mapping[ToolName, ToolRow]
    session: str | None = None
    conversation: BlobRef | None = None
    retry_of: JobId | None = None
    labels: Mapping[str, str] = {}
    tool_queue: str | None = None
    has_policy: bool = True
    roll_over_after: int | None = None
    heartbeat_s: float = 10.0
    state: LoopState | None = None


DISPATCH_TABLE_BYTES = INLINE_RESULT_BYTES = 32 * 1024
SEGMENT_EVENTS, SEGMENT_BYTES = 500, 256 * 1024
MEMO_START, MEMO_STATE, MEMO_REQUESTS = "job", "state", "requests"


class MemoStart(Carried):
    """The part of the memo that never changes: what a reader without a worker needs of the start input."""

    fingerprint: Digest
    principal: PrincipalId
    plugin: PluginRef
    mode: Mode
    snapshot: Digest
    accepted_at: Timestamp
    deadline: Timestamp
    eligibility: Eligibility
    blocker: Blocker | None
    session: str | None = None
    retry_of: JobId | None = None
    labels: Mapping[str, str] = {}
    initiator: Initiator | None = None


class Progress(Carried):
    """An activity's input tells what the job looks like while it runs; its first heartbeat repeats it to readers."""

    event: Event
    usage: Usage
    executed: Executed = "yes"
