"""Decisions: who may give one, on what, and when; then one vote in the ledger, a hint, and the job's own word.

The order is api.md's: scope or grant, existence, approver, own job, state, digest. The ledger's compare-and-set has the
last word, so of racing decisions, expiry and cancel one wins and every answer says which.
"""

import asyncio
import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue
from sqlalchemy import Connection

from facade.log import last_seq
from facade.project import Look, state_of
from facade.reader import DecisionFacts, LedgerFacts
from facade.requests import STATE_OF_VERDICT, find_request, state_of_request
from facade.watch import Watch
from facade.window import Window
from gateway.doors import Doors, need_scope, permit
from gateway.ledger.decisions import (
    AlreadyDecided,
    Counted,
    Decided,
    DecisionRow,
    JobStopped,
    NoSuchJob,
    VoteResult,
    VoteRow,
    VoteStands,
    cast_vote,
)
from gateway.scopes import Action, Caller
from gateway.strictjson import canonical
from workflows.contract.errors import ProblemCode, Refused
from workflows.contract.events import Timestamp
from workflows.contract.ids import Digest, JobId, PrincipalId, RequestId
from workflows.contract.job import TERMINAL, DecisionVerb, OpenRequest, RequestKind, RequestState
from workflows.contract.steps import DecisionHint
from workflows.contract.text import clean_text

ANSWER_BYTES = 32 * 1024
REASON_CHARS = 2000
CONFIRM_S = 3.0
"""How long the answer waits for the job to record the verdict."""
REPEATED_S = 1.0
"""How long a repeated decision waits before it tells the job once more."""
MARGIN_S = 0.5
SETTLEMENTS = ("happened", "did_not_happen", "stop")
VERBS: dict[RequestKind, tuple[DecisionVerb, ...]] = {
    "approval": ("approve", "reject"),
    "question": ("answer", "reject"),
    "reconciliation": ("settle",),
}
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


@dataclass(frozen=True, slots=True)
class _Asked:
    """One decision on its way: what is decided, and what is known of it."""

    caller: Caller
    ledger: LedgerFacts
    look: Look
    request: OpenRequest
    body: DecisionIn

    @property
    def job_id(self) -> JobId:
        assert self.ledger.receipt is not None
        return self.ledger.receipt.job_id


def check_answer(body: DecisionIn) -> None:
    """What a shape can not say. Raises Refused(INPUT_INVALID)."""
    if body.decision in ("approve", "reject") and body.answer is not None:
        raise _invalid("An approval or a rejection has no answer; a rejection may have a reason.")
    if body.decision == "answer" and body.answer is None:
        raise _invalid("answer: The answer is missing.")
    if body.decision == "settle" and body.answer not in SETTLEMENTS:
        raise _invalid(f"answer: A settlement is one of {', '.join(SETTLEMENTS)}.")
    if len(canonical(body.answer)) > ANSWER_BYTES:
        raise _invalid(f"answer: At most {ANSWER_BYTES // 1024} KiB.")


async def decide_request(
    doors: Doors, window: Window, caller: Caller, job_id: str, request_id: str, body: DecisionIn, until: float
) -> tuple[bool, DecisionAnswer]:
    """Whether the job has recorded it (else it will), and what stands. `until`: event loop time."""
    check_answer(body)
    need_scope(caller, Action.JOBS_DECIDE)
    try:
        async with asyncio.timeout_at(until):
            ledger = await window.admitted(caller, JobId(job_id), "jobs:decide")
            look, request = await find_request(window, caller, ledger, RequestId(request_id))
            asked = _Asked(caller, ledger, look, request, body)
            _may_decide(asked)
            ruling = await _still_open(window, asked)
            result = await doors.ledger.write(lambda conn: _vote(conn, asked))
            answer = _outcome(asked, result)
            doors.telemetry.metrics.decisions.add(1, {"verdict": body.decision})
            # The job answers a hint that tells it nothing new with an event: whoever repeats a decision gives none.
            voted = ruling is not None and any(vote.principal == caller.principal for vote in ruling.votes)
            if voted and (answer.state == "pending" or await _recorded(window, asked, until, REPEATED_S)):
                return True, answer
            with contextlib.suppress(Refused):  # it stands in the ledger; repeating the decision hints again
                hint = DecisionHint(request_id=request.request_id, decision=body.decision, by=caller.principal)
                await doors.engine.hint_decision(caller.workspace, asked.job_id, hint)
            if answer.state == "pending":
                return True, answer
            return await _recorded(window, asked, until, CONFIRM_S), answer
    except TimeoutError:
        raise Refused(
            ProblemCode.HTTP_DEADLINE_EXCEEDED, "The request clock ran out; send the same decision again to learn more."
        ) from None


def _may_decide(asked: _Asked) -> None:
    groups = asked.request.approval.groups
    if groups and asked.caller.groups.isdisjoint(groups):
        raise Refused(ProblemCode.NOT_AN_APPROVER, "Deciding this needs one of the groups that its policy names.")
    receipt = asked.ledger.receipt
    assert receipt is not None
    own = {receipt.principal, *([receipt.initiator.id] if receipt.initiator is not None else [])}
    if asked.caller.principal in own:
        raise Refused(ProblemCode.SELF_APPROVAL, "The job is the caller's own; somebody else must decide.")


async def _still_open(window: Window, asked: _Asked) -> DecisionFacts | None:
    """State, then digest, then whether the verb fits; returns what the ledger holds. A verdict that stands is judged
    with the vote, not here."""
    request = asked.request
    ruling = await window.reader.decision(asked.caller.workspace, asked.job_id, request.request_id)
    if ruling is not None and ruling.verdict in ("approve", "reject", "answer", "settle"):
        return ruling
    state = state_of_request(asked.look, asked.ledger, request, ruling, datetime.now(UTC))
    if state == "voided":
        ended = request.state == "pending" and state_of(asked.look).status in TERMINAL
        raise _job_ended() if ended else _voided()
    if state == "expired":
        raise _expired()
    if asked.body.action_digest != request.action_digest:
        raise Refused(ProblemCode.ACTION_DIGEST_MISMATCH, "The digest is not the one that this request shows.")
    if asked.body.decision not in VERBS[request.kind]:
        raise _invalid(f"decision: This request takes {' or '.join(VERBS[request.kind])}.")
    return ruling


def _vote(conn: Connection, asked: _Asked) -> VoteResult:
    """Inside the ledger's transaction: authority and time once more, then the vote."""
    receipt, body, now = asked.ledger.receipt, asked.body, datetime.now(UTC)
    assert receipt is not None
    permit(asked.caller, conn, Action.JOBS_DECIDE, receipt.plugin, now=now)
    vote = VoteRow(
        workspace=asked.caller.workspace,
        job_id=receipt.job_id,
        request_id=asked.request.request_id,
        principal=asked.caller.principal,
        decision=body.decision,
        action_digest=Digest(body.action_digest),
        reason=None if body.reason is None else clean_text(body.reason, REASON_CHARS),
        at=now,
    )
    result = cast_vote(conn, vote, quorum=asked.request.approval.quorum, answer=body.answer)
    if now >= asked.request.expires_at and isinstance(result, Counted | Decided) and not _repeated(result):
        raise _expired()  # and nothing of it is kept
    return result


def _repeated(result: Counted | Decided) -> bool:
    return isinstance(result, Decided) and result.repeated


def _outcome(asked: _Asked, result: VoteResult) -> DecisionAnswer:
    match result:
        case Decided(decision):
            return _answer(asked, decision)
        case Counted(votes):
            return _answer(asked, None, votes)
        case AlreadyDecided(decision) if decision.decision == "expired":
            raise _expired()
        case AlreadyDecided(decision) if decision.decision == "voided":
            raise _voided()
        case AlreadyDecided(decision):
            raise _already(asked, decision)
        case VoteStands():
            raise _already(asked, None, "The caller has voted otherwise on this request; a vote is given once.")
        case JobStopped():
            raise _voided()
        case NoSuchJob():
            raise Refused(ProblemCode.NOT_FOUND, "There is no such job.")


def _answer(asked: _Asked, decision: DecisionRow | None, votes: int = 0) -> DecisionAnswer:
    standing: Any = None if decision is None else decision.decision
    return DecisionAnswer(
        job_id=asked.job_id,
        request_id=asked.request.request_id,
        state="pending" if decision is None else STATE_OF_VERDICT[decision.decision],
        decision=standing,
        action_digest=Digest(asked.request.action_digest),
        decided_by=() if decision is None else decision.decided_by,
        decided_at=None if decision is None else decision.decided_at,
        votes=votes if decision is None else len(decision.decided_by),
        quorum=asked.request.approval.quorum,
    )


async def _recorded(window: Window, asked: _Asked, until: float, at_most_s: float) -> bool:
    """Whether the job records the verdict in time; without a worker nobody can."""
    if asked.request.state != "pending":
        return True
    limit = min(until - MARGIN_S, asyncio.get_running_loop().time() + at_most_s)
    with contextlib.suppress(TimeoutError, Refused):
        async with (
            asyncio.timeout_at(limit),
            window.watchers.following(asked.caller.workspace, asked.job_id, last_seq(asked.look)) as watch,
        ):
            while not _closed(watch, asked.request.request_id):
                await asyncio.wait({watch.changed})
            return True
    return False


def _closed(watch: Watch, request_id: RequestId) -> bool:
    look = watch.look
    if look is None or look.execution is None:
        return False
    pending: Iterable[OpenRequest] = state_of(look).requests
    return all(request.state != "pending" for request in pending if request.request_id == request_id)


def _already(asked: _Asked, decision: DecisionRow | None, detail: str = "") -> Refused:
    record = _answer(asked, decision).model_dump(mode="json")
    return Refused(ProblemCode.ALREADY_DECIDED, detail or "Somebody has decided this request before.", record=record)


def _voided() -> Refused:
    return Refused(ProblemCode.REQUEST_VOIDED, "No decision is needed any more: the job is ending or has ended.")


def _job_ended() -> Refused:
    return Refused(ProblemCode.JOB_ENDED, "The job has ended; nothing is left to decide.")


def _expired() -> Refused:
    return Refused(ProblemCode.REQUEST_EXPIRED, "The time to decide is over; without a decision it is not run.")


def _invalid(detail: str) -> Refused:
    return Refused(ProblemCode.INPUT_INVALID, detail)
