"""The facade's `Reader`, over engine, ledger and blobs. Every verb here reads; none is told to change anything."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from datetime import UTC, datetime
from typing import TypeVar

from sqlalchemy import Connection

from facade.reader import (
    Access,
    DecisionFacts,
    Execution,
    Health,
    LedgerFacts,
    Listed,
    Part,
    ReadAction,
    ReceiptFacts,
    Undecided,
    Viewer,
    VoteFacts,
    Waiting,
    Writes,
)
from gateway.authority import EVERY, Allowed, granted
from gateway.blobs import BlobMissing, Blobs
from gateway.deciders import may_still_decide
from gateway.ledger.authorities import AuthorityRow, find_authority
from gateway.ledger.decisions import find_decision, list_decisions, list_votes
from gateway.ledger.effects import NOT_KNOWN, list_effects
from gateway.ledger.engine import Ledger
from gateway.ledger.grants import GrantRow, grants_of
from gateway.ledger.lines import people_of_line
from gateway.ledger.receipts import ReceiptFilter, ReceiptRow, find_receipt, list_receipts
from gateway.ledger.stops import find_stop
from gateway.scopes import Action
from gateway.temporal import Engine
from workflows.contract.errors import ProblemCode, Refused
from workflows.contract.ids import BlobRef, JobId, PluginName, RequestId, Workspace
from workflows.contract.job import EndRecord, Initiator, OpenRequest, Progress
from workflows.contract.steps import ViewInput, ViewOutput

T = TypeVar("T")

ENGINE_S = 4.0
"""How long one read of the engine may take: less than the request clock, so that the answer can say who is silent."""
_READ_ACTIONS: tuple[ReadAction, ...] = ("jobs:read", "jobs:decide")


class GatewayReader:
    def __init__(
        self, engine: Engine, ledger: Ledger, blobs: Blobs, health: Callable[[], Awaitable[tuple[Health, ...]]]
    ) -> None:
        self._engine = engine
        self._ledger = ledger
        self._blobs = blobs
        self._health = health

    # ---- the engine

    async def execution(self, workspace: Workspace, job_id: JobId) -> Execution | None:
        return await _in_time(self._engine.describe(workspace, job_id))

    async def newest_progress(self, workspace: Workspace, job_id: JobId) -> Progress | None:
        return await _in_time(self._engine.histories.newest_progress(workspace, job_id))

    async def end_record(self, workspace: Workspace, job_id: JobId) -> EndRecord | None:
        return await _in_time(self._engine.histories.end_record(workspace, job_id))

    async def query(
        self, workspace: Workspace, job_id: JobId, after: int, limit: int, timeout_s: float
    ) -> ViewOutput | None:
        return await self._engine.query_view(workspace, job_id, ViewInput(after=after, limit=limit), timeout_s)

    def changes(self, workspace: Workspace, job_id: JobId) -> AsyncIterator[None]:
        return self._engine.histories.changes(workspace, job_id)

    async def waiting(self, workspace: Workspace) -> tuple[Waiting, ...]:
        return await _in_time(self._engine.waiting(workspace))

    # ---- the ledger

    async def ledger(self, viewer: Viewer, job_id: JobId) -> LedgerFacts:
        now = datetime.now(UTC)

        def look(conn: Connection) -> LedgerFacts:
            row = find_receipt(conn, viewer.workspace, job_id)
            access = _access(viewer, grants_of(conn, viewer.workspace, viewer.principal, now), now)
            return _facts(conn, row, access)

        return await self._ledger.read(look)

    async def access(self, viewer: Viewer) -> Access:
        now = datetime.now(UTC)
        return await self._ledger.read(
            lambda conn: _access(viewer, grants_of(conn, viewer.workspace, viewer.principal, now), now)
        )

    async def decision(self, workspace: Workspace, job_id: JobId, request_id: RequestId) -> DecisionFacts | None:
        return await self._ledger.read(lambda conn: read_decision(conn, workspace, job_id, request_id))

    async def undecided(self, viewer: Viewer, requests: Iterable[tuple[JobId, RequestId]]) -> Undecided:
        asked, now = list(requests), datetime.now(UTC)

        def look(conn: Connection) -> Undecided:
            access = _access(viewer, grants_of(conn, viewer.workspace, viewer.principal, now), now)
            open_ = frozenset[tuple[JobId, RequestId]]()
            for job_id in {job for job, _ in asked}:
                row = find_receipt(conn, viewer.workspace, job_id)
                if row is None or find_stop(conn, viewer.workspace, job_id) is not None:
                    continue
                authority = find_authority(conn, viewer.workspace, job_id)
                if authority is not None and authority.revoked_at is not None:
                    continue
                decided = {ruling.request_id for ruling in list_decisions(conn, viewer.workspace, job_id)}
                open_ |= {(job, request) for job, request in asked if job == job_id and request not in decided}
            return Undecided(access, open_)

        return await self._ledger.read(look)

    async def writes(self, workspace: Workspace, job_id: JobId) -> Writes:
        found = await self._ledger.read(lambda conn: list_effects(conn, workspace, job_id))
        if any(effect.state in NOT_KNOWN for effect in found):
            return "not_known"
        return "known" if found else "none"

    async def receipts(
        self, viewer: Viewer, *, plugin: PluginName | None, session: str | None, before: int | None, limit: int
    ) -> Listed:
        now = datetime.now(UTC)

        def look(conn: Connection) -> Listed:
            access = _access(viewer, grants_of(conn, viewer.workspace, viewer.principal, now), now)
            wanted = ReceiptFilter(plugin=plugin, session=session, plugins=access.plugins["jobs:read"])
            rows = list_receipts(conn, viewer.workspace, wanted, before_seq=before, limit=limit + 1)
            jobs = tuple(_facts(conn, row, access) for row in rows[:limit])
            return Listed(jobs, more=len(rows) > limit)

        return await self._ledger.read(look)

    # ---- the rest

    async def blob(self, workspace: Workspace, ref: BlobRef) -> bytes:
        try:
            return await self._blobs.get(workspace, ref)
        except BlobMissing:
            raise KeyError(ref) from None

    async def health(self) -> tuple[Health, ...]:
        return await self._health()


def read_decision(conn: Connection, workspace: Workspace, job_id: JobId, request_id: RequestId) -> DecisionFacts | None:
    """What the ledger holds of a request; None where nobody has voted or decided."""
    ruling = find_decision(conn, workspace, job_id, request_id)
    cast = list_votes(conn, workspace, job_id, request_id)
    row = find_receipt(conn, workspace, job_id)
    if row is None or (ruling is None and not cast):
        return None
    now = datetime.now(UTC)
    votes = tuple(
        VoteFacts(
            vote.principal,
            vote.decision,
            vote.at,
            counts=may_still_decide(conn, workspace, vote.principal, row.plugin, vote.at, now),
        )
        for vote in cast
    )
    return DecisionFacts(
        request_id=request_id,
        verdict=ruling.decision if ruling else None,
        action_digest=ruling.action_digest if ruling else None,
        decided_by=ruling.decided_by if ruling else (),
        decided_at=ruling.decided_at if ruling else None,
        votes=votes,
        shown=OpenRequest.model_validate(ruling.shown) if ruling is not None and ruling.shown is not None else None,
    )


def _access(viewer: Viewer, grants: Iterable[GrantRow], now: datetime) -> Access:
    own = tuple(grants)
    return Access({action: _plugins(viewer, own, action, now) for action in _READ_ACTIONS})


def _plugins(
    viewer: Viewer, grants: tuple[GrantRow, ...], action: ReadAction, now: datetime
) -> frozenset[PluginName] | None:
    """The plugins that scope and grants open for this action; None = every plugin."""
    if action not in viewer.scopes:
        return frozenset()
    fitting = [grant for grant in grants if isinstance(granted((grant,), Action(action), None, now), Allowed)]
    if any(EVERY in grant.plugins for grant in fitting):
        return None
    return frozenset(PluginName(name) for grant in fitting for name in grant.plugins)


def _facts(conn: Connection, row: ReceiptRow | None, access: Access) -> LedgerFacts:
    if row is None:
        return LedgerFacts(None, None, access)
    stop = find_stop(conn, row.workspace, row.job_id)
    authority = find_authority(conn, row.workspace, row.job_id)
    receipt = ReceiptFacts(
        seq=row.seq,
        job_id=row.job_id,
        plugin=row.plugin,
        principal=row.principal,
        initiator=Initiator.model_validate(row.initiator) if row.initiator is not None else None,
        mode=row.mode,
        session=row.session,
        receipt=row.receipt,
        reserved_at=row.reserved_at,
        confirmed_at=row.confirmed_at,
        refused_at=row.refused_at,
        deadline=row.deadline_at,
        erased_at=row.erased_at,
    )
    return LedgerFacts(
        receipt,
        stop.requested_at if stop is not None else None,
        access,
        parts=_parts(conn, row, authority),
        revoked_at=authority.revoked_at if authority is not None else None,
    )


def _parts(conn: Connection, row: ReceiptRow, authority: AuthorityRow | None) -> tuple[Part, ...]:
    if row.line is not None:
        return tuple(people_of_line(conn, row))
    initiator = Initiator.model_validate(row.initiator) if row.initiator is not None else None
    return (Part(row.principal, authority.submitted_by if authority is not None else None, initiator),)


async def _in_time(answer: Awaitable[T]) -> T:
    try:
        async with asyncio.timeout(ENGINE_S):
            return await answer
    except TimeoutError:
        raise Refused(
            ProblemCode.ENGINE_UNAVAILABLE, "The workflow engine does not answer. Try again shortly.", retry_after_s=1
        ) from None
