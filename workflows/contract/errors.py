"""Every refusal has one code, one place that states it, and two renderings: problem+json and a Temporal failure.

    JobgateError                 code, detail; never holds input, secrets or a cause's text
    ├── Refused                  an HTTP answer from the problem table below (4xx and 5xx alike)
    ├── StepError                what an activity tells `steps.py`: a StepCode, retryable or not
    └── JobFailed                how a job ends: a FailureCode and a sentence for the app

Codes are closed lists. Adding one is adding a row here, and the tables below are what the docs and OpenAPI print.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any


class ProblemCode(StrEnum):
    UNAUTHENTICATED = "unauthenticated"
    NOT_PERMITTED = "not-permitted"
    NOT_FOUND = "not-found"
    METHOD_NOT_ALLOWED = "method-not-allowed"
    PAYLOAD_TOO_LARGE = "payload-too-large"
    UNSUPPORTED_MEDIA_TYPE = "unsupported-media-type"
    INPUT_INVALID = "input-invalid"
    TOO_MANY_JOBS = "too-many-jobs"
    TOO_MANY_REQUESTS = "too-many-requests"
    INTERNAL = "internal"
    ENGINE_UNAVAILABLE = "engine-unavailable"
    LEDGER_UNAVAILABLE = "ledger-unavailable"
    BLOBS_UNAVAILABLE = "blobs-unavailable"
    STOPPING = "stopping"
    HTTP_DEADLINE_EXCEEDED = "http-deadline-exceeded"
    IDEMPOTENCY_KEY_MISSING = "idempotency-key-missing"
    IDEMPOTENCY_KEY_INVALID = "idempotency-key-invalid"
    IDEMPOTENCY_KEY_REUSED = "idempotency-key-reused"
    DEADLINE_INVALID = "deadline-invalid"
    LIMIT_EXCEEDED = "limit-exceeded"
    PLUGIN_UNKNOWN = "plugin-unknown"
    BLOCKED = "blocked"
    LOCAL_ONLY = "local-only"
    NOT_LIVE_APPROVED = "not-live-approved"
    SESSION_BUSY = "session-busy"
    ADMISSION_EXPIRED = "admission-expired"
    KEY_TAKEN_OUTSIDE = "key-taken-outside"
    ADMISSION_UNKNOWN = "admission-unknown"
    JOB_EXPIRED = "job-expired"
    JOB_NOT_ENDED = "job-not-ended"
    JOB_ENDED = "job-ended"
    CURSOR_INVALID = "cursor-invalid"
    NOT_AN_APPROVER = "not-an-approver"
    SELF_APPROVAL = "self-approval"
    ALREADY_DECIDED = "already-decided"
    REQUEST_VOIDED = "request-voided"
    REQUEST_EXPIRED = "request-expired"
    ACTION_DIGEST_MISMATCH = "action-digest-mismatch"
    CALLBACK_ANSWERED = "callback-answered"
    CALLBACK_OVER = "callback-over"
    VERSION_EXISTS = "version-exists"
    WORKSPACE_EXISTS = "workspace-exists"
    RELEASE_CONFLICT = "release-conflict"
    GATE_NOT_MET = "gate-not-met"
    PACKET_SPENT = "packet-spent"
    EFFECT_UNRECONCILED = "effect-unreconciled"


@dataclass(frozen=True, slots=True)
class Problem:
    """One row of the problem table: HTTP status, a fixed title, and whether the same request may work later."""

    status: int
    title: str
    retryable: bool = False


PROBLEMS: Mapping[ProblemCode, Problem] = MappingProxyType(
    {
        ProblemCode.UNAUTHENTICATED: Problem(401, "The request carries no valid credential"),
        ProblemCode.NOT_PERMITTED: Problem(403, "The caller lacks a scope or a grant"),
        ProblemCode.NOT_FOUND: Problem(404, "There is nothing here"),
        ProblemCode.METHOD_NOT_ALLOWED: Problem(405, "This address has no such method"),
        ProblemCode.PAYLOAD_TOO_LARGE: Problem(413, "The body is too large"),
        ProblemCode.UNSUPPORTED_MEDIA_TYPE: Problem(415, "The body must be JSON"),
        ProblemCode.INPUT_INVALID: Problem(422, "The body or a parameter is not valid"),
        ProblemCode.TOO_MANY_JOBS: Problem(429, "Too many open jobs", retryable=True),
        ProblemCode.TOO_MANY_REQUESTS: Problem(429, "Too many requests", retryable=True),
        ProblemCode.INTERNAL: Problem(500, "An internal fault"),
        ProblemCode.ENGINE_UNAVAILABLE: Problem(503, "The workflow engine does not answer", retryable=True),
        ProblemCode.LEDGER_UNAVAILABLE: Problem(503, "The ledger does not answer", retryable=True),
        ProblemCode.BLOBS_UNAVAILABLE: Problem(503, "The blob store does not answer", retryable=True),
        ProblemCode.STOPPING: Problem(503, "This process is being stopped", retryable=True),
        ProblemCode.HTTP_DEADLINE_EXCEEDED: Problem(504, "The request clock ran out", retryable=True),
        ProblemCode.IDEMPOTENCY_KEY_MISSING: Problem(400, "The Idempotency-Key header is missing"),
        ProblemCode.IDEMPOTENCY_KEY_INVALID: Problem(400, "The Idempotency-Key header is not valid"),
        ProblemCode.IDEMPOTENCY_KEY_REUSED: Problem(422, "This key was used with other content"),
        ProblemCode.DEADLINE_INVALID: Problem(422, "The deadline is not valid"),
        ProblemCode.LIMIT_EXCEEDED: Problem(422, "The request asks for more than the limits allow"),
        ProblemCode.PLUGIN_UNKNOWN: Problem(404, "There is no such plugin or version"),
        ProblemCode.BLOCKED: Problem(409, "Not yet: this may not run"),
        ProblemCode.LOCAL_ONLY: Problem(409, "Not yet: this runs locally only"),
        ProblemCode.NOT_LIVE_APPROVED: Problem(409, "Not yet: this is not approved for live execution"),
        ProblemCode.SESSION_BUSY: Problem(409, "The session's job has not ended", retryable=True),
        ProblemCode.ADMISSION_EXPIRED: Problem(409, "The reservation of this key expired before the job started"),
        ProblemCode.KEY_TAKEN_OUTSIDE: Problem(409, "Another workflow holds this key"),
        ProblemCode.ADMISSION_UNKNOWN: Problem(503, "It is not yet known whether the job started", retryable=True),
        ProblemCode.JOB_EXPIRED: Problem(410, "The job's record has passed its retention"),
        ProblemCode.JOB_NOT_ENDED: Problem(409, "The job has not ended", retryable=True),
        ProblemCode.JOB_ENDED: Problem(409, "The job has ended"),
        ProblemCode.CURSOR_INVALID: Problem(400, "The cursor is not valid"),
        ProblemCode.NOT_AN_APPROVER: Problem(403, "The caller may not decide this request"),
        ProblemCode.SELF_APPROVAL: Problem(403, "Nobody decides a request of their own job"),
        ProblemCode.ALREADY_DECIDED: Problem(409, "The request is already decided"),
        ProblemCode.REQUEST_VOIDED: Problem(409, "The request was voided"),
        ProblemCode.REQUEST_EXPIRED: Problem(410, "The request has expired"),
        ProblemCode.ACTION_DIGEST_MISMATCH: Problem(412, "The decision names another action"),
        ProblemCode.CALLBACK_ANSWERED: Problem(409, "This call has its answer already"),
        ProblemCode.CALLBACK_OVER: Problem(410, "Nobody waits for this answer any more"),
        ProblemCode.WORKSPACE_EXISTS: Problem(409, "There is a workspace of this name"),
        ProblemCode.VERSION_EXISTS: Problem(409, "This version exists with other content"),
        ProblemCode.RELEASE_CONFLICT: Problem(409, "The release changed meanwhile"),
        ProblemCode.GATE_NOT_MET: Problem(409, "Not yet: the gate's conditions are not met"),
        ProblemCode.EFFECT_UNRECONCILED: Problem(409, "A write of the job has an outcome that is not known"),
        ProblemCode.PACKET_SPENT: Problem(409, "The packet can not be used any more"),
    }
)


class FailureCode(StrEnum):
    """`failure.code` of a job's view (api.md, GET /v1/jobs/{job_id})."""

    DEADLINE_EXCEEDED = "deadline_exceeded"
    BUDGET_EXCEEDED = "budget_exceeded"
    AUTHORITY_REVOKED = "authority_revoked"
    MODEL_FAILED = "model_failed"
    TOOL_FAILED = "tool_failed"
    EFFECT_UNKNOWN = "effect_unknown"
    INPUT_REJECTED = "input_rejected"
    RESULT_TOO_LARGE = "result_too_large"
    SNAPSHOT_MISMATCH = "snapshot_mismatch"
    INCOMPATIBLE_VERSION = "incompatible_version"
    CANARY_INCONCLUSIVE = "canary_inconclusive"
    ENDED_BY_OPERATOR = "ended_by_operator"
    INTERNAL = "internal"


class StepCode(StrEnum):
    """Why an attempt at a step did not bring a result; `steps.py` decides from this alone whether to try again."""

    UNAVAILABLE = "unavailable"
    """5xx, a broken connection or a time-out of the other side: worth another attempt where repeating is safe."""
    RATE_LIMITED = "rate_limited"
    CONNECT_REFUSED = "connect_refused"
    """No byte left: even a `write` may be tried again."""
    REJECTED = "rejected"
    """400, 401, 403, 404 of a model, or a request that can not be built: one attempt only."""
    STALE = "stale"
    """This attempt is not the current one any more; nothing was sent."""
    STOPPED = "stopped"
    """A stop stands in the ledger; nothing was sent."""
    AUTHORITY_REVOKED = "authority_revoked"
    PHASE_CLOSED = "phase_closed"
    DEADLINE = "deadline"
    SNAPSHOT_MISMATCH = "snapshot_mismatch"
    NO_RECEIPT = "no_receipt"
    """The activity was not scheduled by an admitted job; nothing was sent."""
    EFFECT_UNKNOWN = "effect_unknown"
    RESULT_TOO_LARGE = "result_too_large"
    LEDGER_UNAVAILABLE = "ledger_unavailable"
    BLOBS_UNAVAILABLE = "blobs_unavailable"
    LOST = "lost"
    """The attempt's process was not heard of within the heartbeat; set by `steps.py`, never raised."""
    INTERNAL = "internal"


RETRYABLE_STEPS = frozenset(
    {
        StepCode.UNAVAILABLE,
        StepCode.RATE_LIMITED,
        StepCode.CONNECT_REFUSED,
        StepCode.STALE,
        StepCode.LEDGER_UNAVAILABLE,
        StepCode.BLOBS_UNAVAILABLE,
        StepCode.LOST,
    }
)


class JobgateError(Exception):
    """The root. `str()` of any of these is safe to show: it holds a code and a fixed or composed sentence, no input."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail


class Refused(JobgateError):
    """An HTTP problem. `extras` are further members of the problem document (`blocker`, `missing`, `receipt`, ...)."""

    def __init__(self, code: ProblemCode, detail: str, *, retry_after_s: int | None = None, **extras: Any) -> None:
        super().__init__(code, detail)
        self.problem = PROBLEMS[code]
        self.retry_after_s = retry_after_s
        self.extras: Mapping[str, Any] = extras


class StepError(JobgateError):
    """What an activity raises; `detail` is a scrubbed sentence of at most 500 characters. Units: seconds."""

    def __init__(self, code: StepCode, detail: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(code, detail[:500])
        self.step_code = code
        self.retry_after_s = retry_after_s


class JobFailed(JobgateError):
    """Raised in the workflow to end the job with a typed failure."""

    def __init__(self, code: FailureCode, detail: str) -> None:
        super().__init__(code, detail[:500])
        self.failure = code
