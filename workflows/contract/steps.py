"""The typed seam between the loop and the hands: one input and one output model per activity, and their names.

Outputs are small: bytes travel by reference. Nothing in an input is trusted for authority; the call gateway reads
principal, snapshot, deadline and decision from the ledger.
"""

from enum import StrEnum
from typing import Literal

from workflows.contract.carried import Carried
from workflows.contract.events import Event, Timestamp
from workflows.contract.gates import PacketTerms
from workflows.contract.ids import BlobRef, Digest, EffectId, PrincipalId, RequestId, ToolName
from workflows.contract.job import (
    ArtifactRef,
    CallResult,
    DecisionVerb,
    EffectClass,
    JobView,
    Money,
    OpenRequest,
    Progress,
    RequestKind,
    SegmentRef,
)

WORKFLOW_TYPE = "JobWorkflow"
VIEW_QUERY = "view"


class Activity(StrEnum):
    """Registered activity names."""

    MODEL = "model"
    TOOL = "tool"
    READ_DECISION = "read_decision"
    READ_GATE = "read_gate"
    READ_AUTHORITY = "read_authority"
    READ_CALLBACK = "read_callback"
    RECONCILE = "reconcile"
    PUBLISH = "publish"
    ARCHIVE_EVENTS = "archive_events"


class Hint(StrEnum):
    """Signal names the loop understands; every one is only a hint to read the ledger."""

    DECISION = "decision"
    GATE = "gate"
    AUTHORITY = "authority"
    CALLBACK = "callback"


class CallbackHint(Carried):
    """A vendor's answer to call `call` of model step `step` is in the ledger."""

    step: int
    call: int


class DecisionHint(Carried):
    """A readable copy for the Temporal UI; the loop uses the id alone and believes the ledger."""

    request_id: RequestId
    decision: str = ""
    by: str = ""


class ModelInput(Carried):
    """`turn` and `attempt` count from 1; `results` are those of the turn before, in call order."""

    step: int
    turn: int
    attempt: int
    conversation: BlobRef | None
    results: tuple[CallResult, ...]
    progress: Progress


class PlannedCall(Carried):
    """One call the model asked for, with its policy verdict; texts are rendered, escaped and cut."""

    call: int
    tool: ToolName
    verdict: Literal["run", "ask", "refuse"]
    reason: str = ""
    kind: RequestKind = "approval"
    effect: EffectClass
    action_digest: Digest
    args_ref: BlobRef
    message: str
    title: str = ""


class ModelOutput(Carried):
    """`turn` is the turn actually answered (a script may skip entries); `final_ref` ends the job."""

    turn: int
    conversation: BlobRef
    say: str = ""
    calls: tuple[PlannedCall, ...] = ()
    final_ref: BlobRef | None = None
    final_bytes: int = 0
    final_invalid: str | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: Money | None = None
    estimated: bool = False


class ToolInput(Carried):
    step: int
    call: int
    attempt: int
    tool: ToolName
    effect: EffectClass
    action_digest: Digest
    args_ref: BlobRef
    effect_id: EffectId | None
    request_id: RequestId | None
    timeout_s: float
    progress: Progress


class ToolOutput(Carried):
    """`ok`: 2xx. `error`: a result the model sees (4xx, not JSON, ...). `unknown`: it may have happened. `pending`: the
    tool answers later, by a callback that is waited for until `callback_until`."""

    outcome: Literal["ok", "error", "unknown", "pending"]
    callback_until: Timestamp | None = None
    result_ref: BlobRef | None = None
    message: str
    epoch: int | None = None


Whom = Literal["ledger", "tool", "believe_tool"]


class ReconcileInput(Carried):
    """What came of the effect that call `call` of model step `step` sent? `ask`: whom besides the ledger, which is
    asked first. `believe_tool`: the tool was asked before, so that what it still has not found did not happen."""

    step: int
    call: int
    attempt: int
    tool: ToolName
    effect_id: EffectId
    ask: Whom
    progress: Progress
    action_digest: Digest | None = None
    """With step and call it makes the effect's id, so that the ledger can close an effect that was never sent."""


class ReconcileOutput(Carried):
    """`by`: who told it. What the ledger holds is final; a tool that has not found the effect may find it later."""

    outcome: Literal["happened", "did_not_happen", "not_known"]
    by: Literal["ledger", "tool"] = "ledger"
    result_ref: BlobRef | None = None


class PublishInput(Carried):
    """The result behind `ref` (JSON) becomes an artifact of the job, under this name."""

    ref: BlobRef
    name: str
    bytes: int
    attempt: int
    progress: Progress


class PublishOutput(Carried):
    """It is registered, and was read back."""

    artifact: ArtifactRef


class DecisionInput(Carried):
    """`close`: the request's time is up; write `expired` unless a decision stands, and return what stands."""

    request_id: RequestId
    action_digest: Digest
    close: bool = False
    expires_at: Timestamp | None = None
    shown: OpenRequest | None = None
    """With `close` or `void`: the request as it was shown, so that the ledger can still tell of it later."""
    void: bool = False
    """The job ends; write `voided` unless a decision stands, and return what stands."""


class Ruling(Carried):
    """The decision that stands in the ledger for a request, or only votes so far (of people who may still decide)."""

    verdict: DecisionVerb | Literal["expired"] | None
    action_digest: Digest | None = None
    decided_by: tuple[PrincipalId, ...] = ()
    decided_at: Timestamp | None = None
    votes: int = 0
    reason: str = ""
    answer_ref: BlobRef | None = None
    answer: str | None = None


class GateOutput(Carried):
    """The gate as it stands in the ledger now, for a job that is held."""

    open: bool
    revoked: bool = False
    packet: PacketTerms | None = None
    """Where a packet opened it: what the canary may do."""


class AuthorityOutput(Carried):
    """Whether the job may go on; `reason` is a sentence for the app."""

    revoked: bool
    reason: str = ""


class CallbackInput(Carried):
    """`close`: nobody waits any more; the answer that was first still counts."""

    step: int
    call: int
    close: bool = False


class CallbackOutput(Carried):
    """`outcome` None: no answer."""

    outcome: Literal["ok", "error"] | None
    result_ref: BlobRef | None = None


class ArchiveInput(Carried):
    events: tuple[Event, ...]


class StepFailure(Carried):
    """The details of the ApplicationError of a failed attempt (its type is the StepCode)."""

    retry_after_s: float | None = None


class ViewInput(Carried):
    """The `view` query's argument: events after seq `after`, at most `limit` of them."""

    after: int = 0
    limit: int = 100


class ViewOutput(Carried):
    """The view, the events after the cursor that this run still holds, and the segments that hold the older ones."""

    view: JobView
    events: tuple[Event, ...]
    segments: tuple[SegmentRef, ...]
    last_seq: int
