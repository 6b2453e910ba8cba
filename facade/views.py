"""The answers of the window, field by field as api.md has them: an allow-list by construction.

What is not a field here can not reach an app: no run, worker, queue, host or free text of an operator. Nothing is
computed here; `facade/project.py` fills these models.
"""

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, JsonValue

from facade.examples import EVENT, JOB, REQUEST
from workflows.contract.errors import FailureCode
from workflows.contract.events import EVENT_DATA, Event, EventType, Timestamp
from workflows.contract.gates import Blocker, Eligibility
from workflows.contract.ids import Digest, EffectId, JobId, PluginName, PrincipalId, RequestId, ToolName
from workflows.contract.job import (
    ApprovalRule,
    ArtifactRef,
    DecisionVerb,
    Delivery,
    Executed,
    Mode,
    Money,
    OpenRequest,
    PluginRef,
    Recovery,
    RequestKind,
    RequestState,
    Status,
    Usage,
)

NextCode = Literal["wait", "decide", "none", "retry", "change_input", "ask_operator"]
"""`next_action.code`: wait = read again later; decide = a person must act on `pending`; none = nothing is left to do;
retry = run it once more by POST .../retry; change_input = submit something else; ask_operator = only an operator can
help.
"""

Source = Literal["live", "recorded"]


class Answer(BaseModel):
    model_config = ConfigDict(frozen=True)


class NextAction(Answer):
    code: NextCode
    message: str


class EventAnswer(Answer):
    """One event; `seq` is null only for an end that the engine made, and for a reset that no worker has noted yet."""

    model_config = ConfigDict(frozen=True, json_schema_extra={"examples": [EVENT]})

    seq: int | None
    at: Timestamp
    type: EventType
    message: str
    data: Mapping[str, Any]

    @classmethod
    def of(cls, event: Event) -> Self:
        allowed = EVENT_DATA[event.type]
        data = {key: value for key, value in event.data.items() if key in allowed}
        return cls(seq=event.seq, at=event.at, type=event.type, message=event.message, data=data)


class PluginAnswer(Answer):
    name: PluginName
    version: str
    digest: Digest

    @classmethod
    def of(cls, ref: PluginRef) -> Self:
        return cls(name=ref.name, version=ref.version, digest=ref.digest)


class PendingRequest(Answer):
    request_id: RequestId
    kind: RequestKind
    title: str
    expires_at: Timestamp

    @classmethod
    def of(cls, request: OpenRequest) -> Self:
        return cls(request_id=request.request_id, kind=request.kind, title=request.title, expires_at=request.expires_at)


class UsageAnswer(Answer):
    """Counts; `cost_usd` is US dollars with four decimals."""

    steps: int
    input_tokens: int
    output_tokens: int
    cost_usd: Money

    @classmethod
    def of(cls, usage: Usage) -> Self:
        return cls(
            steps=usage.steps,
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            cost_usd=usage.cost_usd,
        )


class FailureAnswer(Answer):
    """Why a job failed; of an open job, why it can not go on for now."""

    code: FailureCode
    message: str


class ArtifactAnswer(Answer):
    """Published bytes. `url` authorises again and redirects; `name` is text, never a path."""

    artifact_id: str
    name: str
    bytes: int
    media_type: str
    digest: Digest
    url: str

    @classmethod
    def of(cls, artifact: ArtifactRef) -> Self:
        return cls(**artifact.model_dump(), url=artifact_url(artifact.artifact_id))


def artifact_url(artifact_id: str) -> str:
    return f"/v1/artifacts/{artifact_id}"


class JobItem(Answer):
    """A job without its result and events: an entry of GET /v1/jobs."""

    job_id: JobId
    status: Status
    mode: Mode
    eligibility: Eligibility
    blocker: Blocker | None
    executed: Executed
    recovery: Recovery
    overdue: bool
    next_action: NextAction
    last_event: EventAnswer
    pending: tuple[PendingRequest, ...]
    plugin: PluginAnswer
    accepted_at: Timestamp
    started_at: Timestamp | None
    finished_at: Timestamp | None
    deadline: Timestamp
    cancel_requested_at: Timestamp | None
    usage: UsageAnswer
    failure: FailureAnswer | None
    result_url: str
    artifacts: tuple[ArtifactAnswer, ...] = ()
    delivery: Delivery = "none"
    retry_of: JobId | None
    session: str | None
    labels: Mapping[str, str]


class JobAnswer(JobItem):
    """GET /v1/jobs/{job_id}. `as_of` is when these facts were read; `recorded` needs no worker."""

    model_config = ConfigDict(frozen=True, json_schema_extra={"examples": [JOB]})

    result: JsonValue = None
    as_of: Timestamp
    source: Source
    events: tuple[EventAnswer, ...] = ()
    next_cursor: str
    has_more: bool = False


class JobList(Answer):
    data: tuple[JobItem, ...]
    next_cursor: str | None
    has_more: bool


class InboxItem(PendingRequest):
    """An open request, with the job it belongs to."""

    job_id: JobId
    tool: ToolName
    action_digest: Digest
    plugin: PluginAnswer
    opened_at: Timestamp


class Inbox(Answer):
    data: tuple[InboxItem, ...]
    next_cursor: str | None = None
    has_more: bool = False


class PolicyAnswer(Answer):
    """Who may decide: members of `groups` (none: anyone with jobs:decide), `quorum` distinct people."""

    groups: tuple[str, ...]
    quorum: int
    expires_in_seconds: int | None

    @classmethod
    def of(cls, rule: ApprovalRule) -> Self:
        return cls(groups=rule.groups, quorum=rule.quorum, expires_in_seconds=rule.expires_in_seconds)


class VoteAnswer(Answer):
    """`counts`: false once whoever gave it may not decide any more."""

    principal: PrincipalId
    decision: DecisionVerb
    at: Timestamp
    counts: bool = True


class RequestAnswer(Answer):
    """GET /v1/jobs/{job_id}/requests/{request_id}: what is shown is what a decision covers, by its digest."""

    model_config = ConfigDict(frozen=True, json_schema_extra={"examples": [REQUEST]})

    job_id: JobId
    request_id: RequestId
    kind: RequestKind
    title: str
    tool: ToolName
    effect_id: EffectId | None
    """Of a reconciliation: the Idempotency-Key that the call in doubt carried."""
    args: JsonValue
    action_digest: Digest
    opened_at: Timestamp
    expires_at: Timestamp
    policy: PolicyAnswer
    votes: tuple[VoteAnswer, ...]
    state: RequestState
    decided_by: tuple[PrincipalId, ...]
    decided_at: Timestamp | None


class Rung(Answer):
    """One rung of /readyz; `ok` null: not known, which is not yes."""

    rung: str
    ok: bool | None
    detail: str


class Readiness(Answer):
    ready: bool
    rungs: tuple[Rung, ...]
