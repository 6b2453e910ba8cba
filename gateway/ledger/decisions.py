"""Decisions: votes of people on a request, and the one verdict that follows; written once, never changed.

A vote and the verdict it brings are one transaction that holds the job's row, so a stop, an expiry and the last vote
can not all win. Who may vote, and whether the digest is the one shown, is checked before; quorum is counted here.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import Connection, bindparam, select

from gateway.ledger.authorities import find_authority
from gateway.ledger.journal import record
from gateway.ledger.receipts import lock_job
from gateway.ledger.stops import StopRow, find_stop
from gateway.ledger.tables import columns_of, decisions, insert_if_absent, votes
from gateway.strictjson import canonical
from workflows.contract.ids import Digest, JobId, PrincipalId, RequestId, Workspace
from workflows.contract.job import DecisionVerb

Verdict = Literal["approve", "reject", "answer", "settle", "expired", "voided"]
ClosedBy = Literal["expired", "voided"]


@dataclass(frozen=True)
class VoteRow:
    workspace: Workspace
    job_id: JobId
    request_id: RequestId
    principal: PrincipalId
    decision: DecisionVerb
    action_digest: Digest
    reason: str | None
    at: datetime


@dataclass(frozen=True)
class DecisionRow:
    """`answer` is JSON: of an answer or a settlement, else None. `decided_by` is empty when nobody decided. `shown` is
    the request as it was shown, as JSON; None in rows of the first release. `taken_at`: when the job read it."""

    workspace: Workspace
    job_id: JobId
    request_id: RequestId
    decision: Verdict
    action_digest: Digest
    answer: Any
    reason: str | None
    decided_by: tuple[PrincipalId, ...]
    decided_at: datetime
    shown: Mapping[str, Any] | None = None
    taken_at: datetime | None = None


@dataclass(frozen=True)
class Decided:
    """The verdict stands and this vote is part of it; `repeated`: it had been given before."""

    decision: DecisionRow
    repeated: bool


@dataclass(frozen=True)
class Counted:
    """The vote is recorded, and `votes` of `quorum` people have approved; `repeated`: it had been given before."""

    votes: int
    quorum: int
    repeated: bool = False


@dataclass(frozen=True)
class AlreadyDecided:
    """The request was decided, expired or voided otherwise; the vote was not recorded."""

    decision: DecisionRow


@dataclass(frozen=True)
class VoteStands:
    """This person voted otherwise before; a vote is given once. `votes` people have approved."""

    vote: VoteRow
    votes: int


@dataclass(frozen=True)
class JobStopped:
    """The job is being canceled: nothing is decided any more."""

    stop: StopRow


@dataclass(frozen=True)
class AuthorityGone:
    """The job's authority was revoked: it ends, and nothing is decided any more."""


@dataclass(frozen=True)
class NoSuchJob:
    """There is no receipt, so there is nothing to decide."""


VoteResult = Decided | Counted | AlreadyDecided | VoteStands | JobStopped | AuthorityGone | NoSuchJob

_VOTE = columns_of(VoteRow, votes)
_DECISION = columns_of(DecisionRow, decisions)
_OF_JOB = (decisions.c.workspace == bindparam("workspace"), decisions.c.job_id == bindparam("job_id"))

_CAST = insert_if_absent(votes).returning(*_VOTE)
_VOTES = (
    select(*_VOTE)
    .where(
        votes.c.workspace == bindparam("workspace"),
        votes.c.job_id == bindparam("job_id"),
        votes.c.request_id == bindparam("request_id"),
    )
    .order_by(votes.c.at, votes.c.principal)
)
_DECIDE = insert_if_absent(decisions).returning(*_DECISION)
_FIND = select(*_DECISION).where(*_OF_JOB, decisions.c.request_id == bindparam("request_id"))
_LIST = select(*_DECISION).where(*_OF_JOB).order_by(decisions.c.decided_at, decisions.c.request_id)


def cast_vote(
    conn: Connection,
    vote: VoteRow,
    *,
    quorum: int,
    answer: Any = None,
    shown: Mapping[str, Any] | None = None,
    may_decide: Callable[[VoteRow], bool] = lambda _: True,
) -> VoteResult:
    """Records the vote, and the verdict when it is reached: `quorum` distinct people for approve, one for the rest.

    Earlier votes count only while `may_decide` still says yes of who gave them; it is asked with the job's row held.
    """
    if not lock_job(conn, vote.workspace, vote.job_id):
        return NoSuchJob()
    cast = list_votes(conn, vote.workspace, vote.job_id, vote.request_id)
    mine = next((other for other in cast if other.principal == vote.principal), None)
    standing = find_decision(conn, vote.workspace, vote.job_id, vote.request_id)
    if standing is not None:
        same = mine is not None and _same(mine, vote) and _carries(standing, vote, answer)
        return Decided(standing, repeated=True) if same else AlreadyDecided(standing)
    stop = find_stop(conn, vote.workspace, vote.job_id)
    if stop is not None:
        return JobStopped(stop)
    authority = find_authority(conn, vote.workspace, vote.job_id)
    if authority is not None and authority.revoked_at is not None:
        return AuthorityGone()
    if mine is not None and not _same(mine, vote):
        return VoteStands(mine, sum(one.decision == "approve" and may_decide(one) for one in cast))
    if mine is None:
        conn.execute(_CAST, vars(vote))
        _record(conn, vote, "request.voted")
        cast = [*cast, vote]
    agreed = [other for other in cast if _same(other, vote) and may_decide(other)]
    if vote.decision == "approve" and len(agreed) < quorum:
        return Counted(len(agreed), quorum, repeated=mine is not None)
    decision = _decide(conn, vote, agreed, answer, shown)
    settled = {"answer": answer} if vote.decision == "settle" else {}  # one of three words, and what the effect becomes
    _record(conn, vote, "request.decided", decided_by=list(decision.decided_by), **settled)
    return Decided(decision, repeated=False)


def settle_afterwards(conn: Connection, settled: DecisionRow) -> None:
    """A settlement that no request asked for, because the effect's job had ended: the id of the effect stands in the
    request's place. Call it with the job's row held, once `find_decision` has found none."""
    conn.execute(_DECIDE, vars(settled)).one()


def close_request(
    conn: Connection,
    workspace: Workspace,
    job_id: JobId,
    request_id: RequestId,
    *,
    verdict: ClosedBy,
    action_digest: Digest,
    at: datetime,
    shown: Mapping[str, Any] | None = None,
) -> DecisionRow | None:
    """Nobody decided in time (`expired`, which is never yes), or the job ends. Returns the verdict that stands: this
    one, or who was first.

    None when there is no such job.
    """
    if not lock_job(conn, workspace, job_id):
        return None
    row = DecisionRow(workspace, job_id, request_id, verdict, action_digest, None, None, (), at, shown, taken_at=at)
    inserted = conn.execute(_DECIDE, vars(row)).first()
    if inserted is None:
        return find_decision(conn, workspace, job_id, request_id)
    return _decision(inserted)


def find_decision(conn: Connection, workspace: Workspace, job_id: JobId, request_id: RequestId) -> DecisionRow | None:
    of = {"workspace": workspace, "job_id": job_id, "request_id": request_id}
    row = conn.execute(_FIND, of).first()
    return None if row is None else _decision(row)


def list_decisions(conn: Connection, workspace: Workspace, job_id: JobId) -> list[DecisionRow]:
    """Oldest first."""
    return [_decision(row) for row in conn.execute(_LIST, {"workspace": workspace, "job_id": job_id})]


def list_votes(conn: Connection, workspace: Workspace, job_id: JobId, request_id: RequestId) -> list[VoteRow]:
    """Oldest first."""
    of = {"workspace": workspace, "job_id": job_id, "request_id": request_id}
    return [VoteRow(*row) for row in conn.execute(_VOTES, of)]


def _decide(
    conn: Connection, vote: VoteRow, agreed: Iterable[VoteRow], answer: Any, shown: Mapping[str, Any] | None
) -> DecisionRow:
    decision = DecisionRow(
        vote.workspace,
        vote.job_id,
        vote.request_id,
        vote.decision,
        vote.action_digest,
        answer,
        vote.reason,
        tuple(other.principal for other in agreed),
        vote.at,
        shown,
    )
    row = conn.execute(_DECIDE, vars(decision)).first()
    if row is None:
        raise LookupError("a decision appeared although the job's row was held")
    return _decision(row)


def _same(one: VoteRow, other: VoteRow) -> bool:
    return one.decision == other.decision and one.action_digest == other.action_digest


def _carries(decision: DecisionRow, vote: VoteRow, answer: Any) -> bool:
    return (
        vote.principal in decision.decided_by
        and decision.decision == vote.decision
        and decision.action_digest == vote.action_digest
        and canonical(decision.answer) == canonical(answer)
    )


def _record(conn: Connection, vote: VoteRow, action: str, **more: Any) -> None:
    record(
        conn,
        vote.workspace,
        at=vote.at,
        actor=vote.principal,
        action=action,
        subject=f"{vote.job_id}/{vote.request_id}",
        decision=vote.decision,
        action_digest=vote.action_digest,
        **more,
    )


def _decision(row: Any) -> DecisionRow:
    decision = DecisionRow(*row)
    return replace(decision, decided_by=tuple(decision.decided_by))
