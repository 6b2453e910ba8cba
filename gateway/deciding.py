"""Decisions: who may give one, on what, and when; then one vote in the ledger, a hint, and the job's own word.

The order is api.md's: scope or grant, existence, approver, own job, state, digest. The ledger's compare-and-set has the
last word, so of racing decisions, expiry, cancel and revocation one wins and every answer says which.
"""

import asyncio
import contextlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import Connection

from facade.cursors import Cursor, cursor_at
from facade.log import last_seq
from facade.project import Look, state_of
from facade.reader import DecisionFacts, LedgerFacts
from facade.requests import Found, find_request, state_of_request
from facade.watch import Watch
from facade.window import Window
from gateway.deciders import has_part, may_still_decide
from gateway.doors import Doors, need_scope, permit
from gateway.ledger.decisions import Counted, Decided, VoteResult, VoteRow, cast_vote
from gateway.ledger.effects import NOT_KNOWN, find_effect, reconcile_effect
from gateway.ledger.grants import grants_of
from gateway.ledger.receipts import lock_job
from gateway.questions import misfits
from gateway.schemas import SchemaInvalid
from gateway.scopes import Action, Caller
from gateway.strictjson import parse_json
from gateway.verdicts import (
    REASON_CHARS,
    DecisionAnswer,
    DecisionIn,
    check_answer,
    expired,
    invalid,
    job_ended,
    outcome,
    voided,
)
from workflows.contract.errors import ProblemCode, Refused
from workflows.contract.ids import Digest, JobId, RequestId
from workflows.contract.job import TERMINAL, DecisionVerb, OpenRequest, RequestKind
from workflows.contract.steps import DecisionHint
from workflows.contract.text import clean_text

CONFIRM_S = 3.0
"""How long the answer waits for the job to record the verdict."""
REPEATED_S = 1.0
"""How long a repeated decision waits before it tells the job once more."""
MARGIN_S = 0.5
VERBS: dict[RequestKind, tuple[DecisionVerb, ...]] = {
    "approval": ("approve", "reject"),
    "question": ("answer", "reject"),
    "reconciliation": ("settle",),
}


@dataclass(frozen=True, slots=True)
class _Asked:
    """One decision on its way: what is decided, and what is known of it."""

    caller: Caller
    ledger: LedgerFacts
    found: Found
    body: DecisionIn

    @property
    def request(self) -> OpenRequest:
        return self.found.request

    @property
    def job_id(self) -> JobId:
        assert self.ledger.receipt is not None
        return self.ledger.receipt.job_id


class Known(Refused):
    """The ledger knows by now what came of the effect: the job only has to look."""

    def __init__(self) -> None:
        super().__init__(
            ProblemCode.REQUEST_VOIDED,
            "What came of it has become known meanwhile; nothing is left to settle, and the job goes on by itself.",
        )


async def decide_request(
    doors: Doors, window: Window, caller: Caller, job_id: str, request_id: str, body: DecisionIn, until: float
) -> tuple[bool, DecisionAnswer]:
    """Whether the job has recorded it (else it will), and what stands. `until`: event loop time."""
    check_answer(body)
    need_scope(caller, Action.JOBS_DECIDE)
    try:
        async with asyncio.timeout_at(until):
            ledger = await admitted_to_decide(window, caller, JobId(job_id))
            found = await find_request(window, caller, ledger, RequestId(request_id), to_decide=True)
            asked = _Asked(caller, ledger, found, body)
            check_decider(caller, ledger, found.request.approval.groups)
            if not _stands(found.ruling):
                _still_open(asked)
                await _fits(window, asked)
            try:
                result = await doors.ledger.write(lambda conn: _vote(conn, asked))
            except Known:
                with contextlib.suppress(Refused):  # whoever settles it again hints again
                    await doors.engine.hint_decision(caller.workspace, asked.job_id, _hint(asked))
                raise
            answer = outcome(asked.job_id, asked.request, result)
            doors.telemetry.metrics.decisions.add(1, {"verdict": body.decision})
            # The job answers a hint that tells it nothing new with an event: whoever repeats a decision gives none.
            if _repeated(result) and (answer.state == "pending" or await _recorded(window, asked, until, REPEATED_S)):
                return True, answer
            with contextlib.suppress(Refused):  # it stands in the ledger; repeating the decision hints again
                await doors.engine.hint_decision(caller.workspace, asked.job_id, _hint(asked))
            if answer.state == "pending":
                return True, answer
            return await _recorded(window, asked, until, CONFIRM_S), answer
    except TimeoutError:
        raise Refused(
            ProblemCode.HTTP_DEADLINE_EXCEEDED, "The request clock ran out; send the same decision again to learn more."
        ) from None


def _hint(asked: _Asked) -> DecisionHint:
    return DecisionHint(request_id=asked.request.request_id, decision=asked.body.decision, by=asked.caller.principal)


async def admitted_to_decide(window: Window, caller: Caller, job_id: JobId) -> LedgerFacts:
    """The job's facts; whoever may decide nowhere hears that, and not whether there is such a job."""
    try:
        return await window.admitted(caller, job_id, "jobs:decide")
    except Refused as refused:
        if refused.code is ProblemCode.NOT_FOUND and (await window.reader.access(caller)).nothing("jobs:decide"):
            raise Refused(ProblemCode.NOT_PERMITTED, "No valid grant allows jobs:decide.") from None
        raise


def check_decider(caller: Caller, ledger: LedgerFacts, groups: Collection[str]) -> None:
    """Raises Refused: NOT_AN_APPROVER, SELF_APPROVAL."""
    if groups and caller.groups.isdisjoint(groups):
        named = ", ".join(sorted(groups))
        detail = f"Deciding this needs one of the groups that its policy names: {named}."
        raise Refused(ProblemCode.NOT_AN_APPROVER, detail, groups=sorted(groups))
    if has_part(caller.principal, ledger.parts):
        detail = "The job, or one that it repeats, is the caller's own; somebody else must decide."
        raise Refused(ProblemCode.SELF_APPROVAL, detail)


def _stands(ruling: DecisionFacts | None) -> bool:
    """A verdict that people gave; whether this decision repeats or contradicts it is judged with the vote."""
    return ruling is not None and ruling.verdict in ("approve", "reject", "answer", "settle")


def _still_open(asked: _Asked) -> None:
    """State, then digest, then whether the verb fits."""
    request = asked.request
    state = state_of_request(asked.found, asked.ledger, datetime.now(UTC))
    if state == "voided":
        ended = request.state == "pending" and state_of(asked.found.look).status in TERMINAL
        raise job_ended() if ended else voided()
    if state == "expired":
        raise expired()
    if asked.body.action_digest != request.action_digest:
        raise Refused(ProblemCode.ACTION_DIGEST_MISMATCH, "The digest is not the one that this request shows.")
    if asked.body.decision not in VERBS[request.kind]:
        raise invalid(f"decision: This request takes {' or '.join(VERBS[request.kind])}.")


async def _fits(window: Window, asked: _Asked) -> None:
    """An answer must fit the schema that its question shows."""
    if asked.body.decision != "answer":
        return
    try:
        question = parse_json(await window.reader.blob(asked.caller.workspace, asked.request.args_ref))
    except KeyError:
        raise Refused(ProblemCode.NOT_FOUND, "The question was erased; there is nothing to answer.") from None
    assert isinstance(question, dict)
    try:
        reasons = misfits(question, asked.body.answer)
    except SchemaInvalid:
        raise invalid("answer: The question's schema can not be judged here; reject the question instead.") from None
    if reasons:
        raise invalid(f"answer: {'; '.join(reasons)}.")


def _vote(conn: Connection, asked: _Asked) -> VoteResult:
    """Inside the ledger's transaction: authority and time once more, then the vote."""
    receipt, body = asked.ledger.receipt, asked.body
    assert receipt is not None
    lock_job(conn, asked.caller.workspace, receipt.job_id)
    now = datetime.now(UTC)  # with the row held: what was waited for is past, too
    permit(asked.caller, conn, Action.JOBS_DECIDE, receipt.plugin, now=now)
    given = [grant.at for grant in grants_of(conn, asked.caller.workspace, asked.caller.principal, now)]

    def may_decide(one: VoteRow) -> bool:
        return may_still_decide(conn, asked.caller.workspace, one.principal, receipt.plugin, one.at, now)

    vote = VoteRow(
        workspace=asked.caller.workspace,
        job_id=receipt.job_id,
        request_id=asked.request.request_id,
        principal=asked.caller.principal,
        decision=body.decision,
        action_digest=Digest(body.action_digest),
        reason=None if body.reason is None else clean_text(body.reason, REASON_CHARS),
        at=max([now, *given]),  # a vote is never older than the leave to give it, also where a clock was set back
    )
    result = cast_vote(
        conn,
        vote,
        quorum=asked.request.approval.quorum,
        answer=body.answer,
        shown=asked.request.model_dump(mode="json"),
        may_decide=may_decide,
    )
    if isinstance(result, Decided) and not result.repeated:
        _settle(conn, asked, now)
    if now >= asked.request.expires_at and isinstance(result, Counted | Decided) and not _decided_before(result):
        raise expired()  # and nothing of it is kept
    return result


def _settle(conn: Connection, asked: _Asked, now: datetime) -> None:
    """A settlement is written to its effect with the verdict; `stop` leaves it unknown. Raises Known, and then nothing
    of it is kept: of a settlement and an answer that came late one counts, and nobody is recorded with the other."""
    effect, answer = asked.request.effect_id, asked.body.answer
    if asked.request.kind != "reconciliation" or effect is None:
        return
    if answer == "stop":
        row = find_effect(conn, effect)
        settled = row is not None and row.state in NOT_KNOWN
    else:
        settled = reconcile_effect(
            conn,
            asked.caller.workspace,
            asked.job_id,
            effect,
            happened=answer == "happened",
            outcome_ref=None,
            at=now,
        )
    if not settled:
        raise Known


def _decided_before(result: VoteResult) -> bool:
    return isinstance(result, Decided) and result.repeated


def _repeated(result: VoteResult) -> bool:
    """The ledger's own word: of the same decisions at the same moment, all but one are repeats."""
    return isinstance(result, Counted | Decided) and result.repeated


async def _recorded(window: Window, asked: _Asked, until: float, at_most_s: float) -> bool:
    """Whether the job records the verdict in time; without a worker nobody can."""
    if asked.found.forgotten or asked.request.state != "pending":
        return True
    limit = min(until - MARGIN_S, asyncio.get_running_loop().time() + at_most_s)
    with contextlib.suppress(TimeoutError, Refused):
        async with (
            asyncio.timeout_at(limit),
            window.watchers.following(asked.caller.workspace, asked.job_id, _here(asked.found.look)) as watch,
        ):
            while not _closed(watch, asked.request.request_id):
                await asyncio.wait({watch.changed})
            return True
    return False


def _here(look: Look) -> Cursor:
    return cursor_at(last_seq(look), state_of(look).resets)


def _closed(watch: Watch, request_id: RequestId) -> bool:
    look = watch.look
    if look is None or look.execution is None:
        return False
    pending: Iterable[OpenRequest] = state_of(look).requests
    return all(request.state != "pending" for request in pending if request.request_id == request_id)
