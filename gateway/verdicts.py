"""A decision's two shapes on the wire: what a person sends, and what stands afterwards or why it does not count.

Nothing is looked up here; `gateway.deciding` brings the facts.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from facade.requests import STATE_OF_VERDICT
from gateway.ledger.decisions import (
    AlreadyDecided,
    AuthorityGone,
    Counted,
    Decided,
    DecisionRow,
    JobStopped,
    NoSuchJob,
    VoteResult,
    VoteStands,
)
from gateway.questions import ANSWER_BYTES
from gateway.strictjson import canonical
from workflows.contract.errors import ProblemCode, Refused
from workflows.contract.events import Timestamp
from workflows.contract.ids import Digest, JobId, PrincipalId, RequestId
from workflows.contract.job import DecisionVerb, OpenRequest, RequestState

REASON_CHARS = 2000
SETTLEMENTS = ("happened", "did_not_happen", "stop")
_DIGEST_FIELD = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]


class DecisionIn(BaseModel):
    """`action_digest` is the one that the request shows; `answer` goes with answer and settle, and only there."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        json_schema_extra={"examples": [{"decision": "approve", "action_digest": "sha256:" + "4f" * 32}]},
    )

    decision: Literal["approve", "reject", "answer", "settle"]
    action_digest: _DIGEST_FIELD
    answer: JsonValue = None
    reason: Annotated[str, Field(max_length=REASON_CHARS)] | None = None


class DecisionAnswer(BaseModel):
    """What stands for the request now; the same for whoever repeats their decision."""

    job_id: JobId
    request_id: RequestId
    state: RequestState
    decision: DecisionVerb | None
    action_digest: Digest
    decided_by: tuple[PrincipalId, ...]
    decided_at: Timestamp | None
    votes: int
    quorum: int


def check_answer(body: DecisionIn) -> None:
    """What a shape can not say. Raises Refused(INPUT_INVALID)."""
    if body.decision in ("approve", "reject") and body.answer is not None:
        raise invalid("An approval or a rejection has no answer; a rejection may have a reason.")
    if body.decision == "answer" and body.answer is None:
        raise invalid("answer: The answer is missing.")
    if body.decision == "settle" and body.answer not in SETTLEMENTS:
        raise invalid(f"answer: A settlement is one of {', '.join(SETTLEMENTS)}.")
    if len(canonical(body.answer)) > ANSWER_BYTES:
        raise invalid(f"answer: At most {ANSWER_BYTES // 1024} KiB.")


def outcome(job_id: JobId, request: OpenRequest, result: VoteResult) -> DecisionAnswer:
    """The answer to a vote. Raises Refused where the vote does not count."""
    match result:
        case Decided(decision):
            return _answer(job_id, request, decision)
        case Counted(votes):
            return _answer(job_id, request, None, votes)
        case AlreadyDecided(decision) if decision.decision == "expired":
            raise expired()
        case AlreadyDecided(decision) if decision.decision == "voided":
            raise voided()
        case AlreadyDecided(decision):
            record = _answer(job_id, request, decision)
            raise _already(record, "Somebody has decided this request before.")
        case VoteStands(_, votes):
            record = _answer(job_id, request, None, votes)
            raise _already(record, "The caller has voted otherwise on this request; a vote is given once.")
        case JobStopped() | AuthorityGone():
            raise voided()
        case NoSuchJob():
            raise Refused(ProblemCode.NOT_FOUND, "There is no such job.")


def _answer(job_id: JobId, request: OpenRequest, decision: DecisionRow | None, votes: int = 0) -> DecisionAnswer:
    standing: Any = None if decision is None else decision.decision
    return DecisionAnswer(
        job_id=job_id,
        request_id=request.request_id,
        state="pending" if decision is None else STATE_OF_VERDICT[decision.decision],
        decision=standing,
        action_digest=Digest(request.action_digest),
        decided_by=() if decision is None else decision.decided_by,
        decided_at=None if decision is None else decision.decided_at,
        votes=votes if decision is None else len(decision.decided_by),
        quorum=request.approval.quorum,
    )


def _already(record: DecisionAnswer, detail: str) -> Refused:
    return Refused(ProblemCode.ALREADY_DECIDED, detail, record=record.model_dump(mode="json"))


def voided() -> Refused:
    return Refused(ProblemCode.REQUEST_VOIDED, "No decision is needed any more: the job is ending or has ended.")


def job_ended() -> Refused:
    return Refused(ProblemCode.JOB_ENDED, "The job has ended; nothing is left to decide.")


def expired() -> Refused:
    return Refused(ProblemCode.REQUEST_EXPIRED, "The time to decide is over; without a decision it is not run.")


def invalid(detail: str) -> Refused:
    return Refused(ProblemCode.INPUT_INVALID, detail)
