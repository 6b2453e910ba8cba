"""Changes that concern running jobs: authority is taken away in the change's own transaction, hints follow it.

The ledger is the fact and a hint is only its messenger: whoever calls reads the ledger again, so a hint that is lost
delays and never permits. Every API and worker process delivers what nobody has delivered yet, at once after a change of
its own and every `sweep_s` seconds; hints may come twice. A vendor's answer that its job has not taken is told of in
the same way, a verdict of people by `gateway.untaken`. A job admitted while a change was made finds it when its
acceptance is recorded.
"""

import asyncio
import contextlib
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from sqlalchemy import Connection

from gateway.authority import Action, Denied, granted
from gateway.ledger.authorities import (
    AuthorityRow,
    find_authority,
    mark_ended,
    open_authorities,
    outdated_authority,
    principals_expired,
    revoke_authority,
)
from gateway.ledger.callbacks import close_call, untold_answers
from gateway.ledger.effects import open_effects
from gateway.ledger.engine import Ledger
from gateway.ledger.gates import held_job_released, packet_waits
from gateway.ledger.grants import grants_of
from gateway.ledger.journal import (
    ChangeRow,
    announce,
    changes_since,
    mark_delivered,
    record,
    undelivered_changes,
)
from gateway.ledger.receipts import ReceiptRow, accept, find_receipt
from gateway.stranded import Stranded
from gateway.telemetry import log
from gateway.temporal import Engine
from gateway.untaken import Reminder
from workflows.contract.errors import Refused
from workflows.contract.ids import JobId, PluginName, PrincipalId, Workspace
from workflows.contract.steps import CallbackHint, Hint

GRANT_GONE = "The grants that this job ran on were revoked."
GRANT_EXPIRED = "The grants that this job ran on have expired."
KEY_GONE = "The API key that submitted this job was revoked."
AT_ONCE = 16
CHANGES_A_SWEEP = 100
ENDED_EVERY_S = 10.0
SETTLE_S = 1.0
READS_LEAVE_WITHIN_S = 0.4
"""A read looks at the ledger at most 0.25 s before its bytes leave (`gateway.calls.permits`)."""
LOOK_BACK = timedelta(days=1)
"""How far a process that has just started looks back for grants that expired and jobs that ended unseen."""
OVERLAP = timedelta(minutes=1)
ANSWER_TAKEN_WITHIN = timedelta(seconds=2)
"""An answer that its job has not taken by then is told of once more."""
TOLD_AGAIN_S = 600.0
"""Each hint is an event of the job's history, and a job without a worker takes none."""


def withdraw_authority(
    conn: Connection, workspace: Workspace, principal: PrincipalId, *, by: str, at: datetime, reason: str = GRANT_GONE
) -> list[JobId]:
    """Takes the authority of the principal's open jobs that its remaining grants do not cover. For ever: a later grant
    brings none back. Call it after the grants are revoked, in the same transaction."""
    grants = grants_of(conn, workspace, principal, at)
    uncovered = [
        row
        for row in open_authorities(conn, workspace, principal=principal)
        if isinstance(granted(grants, Action.JOBS_SUBMIT, row.plugin, at), Denied)
    ]
    return _withdraw(conn, uncovered, by=by, at=at, reason=reason)


def withdraw_credential(conn: Connection, workspace: Workspace, key_id: str, *, by: str, at: datetime) -> list[JobId]:
    """Takes the authority of the open jobs that this API key submitted; in the transaction that revokes the key."""
    rows = open_authorities(conn, workspace, credential=key_id)
    return _withdraw(conn, rows, by=by, at=at, reason=KEY_GONE)


def accept_job(conn: Connection, row: ReceiptRow, at: datetime, first_run: str | None = None) -> frozenset[Hint]:
    """Records that the engine knows the job, and looks at what changed since its admission looked. The hints to give
    it: what it was admitted on was taken away at that very moment, or the gate that it is held at was opened."""
    accept(conn, row.workspace, row.job_id, at, first_run)
    authority = outdated_authority(conn, row.workspace, row.job_id)
    if authority is None:
        return frozenset()
    since = changes_since(conn, row.workspace, authority.seen_change)
    if any(change.kind == "key" and change.subject == authority.credential for change in since):
        _withdraw(conn, [authority], by="admission", at=at, reason=KEY_GONE)
    elif any(change.kind == "revocation" and change.subject == authority.principal for change in since):
        # A grant made after the revocation is no authority for what was admitted before it.
        grants = grants_of(conn, row.workspace, authority.principal, at)
        before = [grant for grant in grants if grant.at <= authority.minted_at]
        if isinstance(granted(before, Action.JOBS_SUBMIT, authority.plugin, at), Denied):
            _withdraw(conn, [authority], by="admission", at=at, reason=GRANT_GONE)
    hints = {Hint.AUTHORITY for change in since if _concerns(change, authority)}
    return frozenset(hints | ({Hint.GATE} if held_job_released(conn, row) else set()))


def _withdraw(conn: Connection, rows: Iterable[AuthorityRow], *, by: str, at: datetime, reason: str) -> list[JobId]:
    taken: list[JobId] = []
    for row in rows:
        if revoke_authority(conn, row.workspace, row.job_id, reason=reason, at=at):
            record(conn, row.workspace, at=at, actor=by, action="authority.revoked", subject=row.job_id)
            taken.append(row.job_id)
    return taken


def _concerns(change: ChangeRow, job: AuthorityRow) -> bool:
    match change.kind:
        case "revocation":
            return change.subject == job.principal
        case "key":
            return change.subject == job.credential
        case "withdrawal":
            return change.subject == f"{job.plugin}@{job.version}"
        case _:
            return False


def _concerned(conn: Connection, change: ChangeRow) -> list[AuthorityRow]:
    """The open jobs that should look at the ledger again; of a change of gates those alone that it lets go, so that a
    job which is held does nothing until then."""
    match change.kind:
        case "revocation":
            return open_authorities(conn, change.workspace, principal=PrincipalId(change.subject))
        case "key":
            return open_authorities(conn, change.workspace, credential=change.subject)
        case "packet" if change.workspace is not None:
            job = find_authority(conn, change.workspace, JobId(change.subject))
            return [] if job is None else [job]
        case "phase":
            return [job for job in _of_subject(conn, change) if _released(conn, job)]
        case "withdrawal":
            return _of_subject(conn, change)
        case _:
            return []


def _of_subject(conn: Connection, change: ChangeRow) -> list[AuthorityRow]:
    if change.subject == "runtime":
        return open_authorities(conn, None)
    plugin, _, version = change.subject.partition("@")
    return open_authorities(conn, change.workspace, plugin=PluginName(plugin), version=version)


def _released(conn: Connection, job: AuthorityRow) -> bool:
    receipt = find_receipt(conn, job.workspace, job.job_id)
    if receipt is None:
        return False
    return held_job_released(conn, receipt) or packet_waits(conn, receipt, datetime.now(UTC))


class Changes:
    """One per process. `run` delivers until it is cancelled; `wake` makes it look at once. Workers note ends, too."""

    def __init__(self, ledger: Ledger, engine: Engine, every_s: float, *, notes_ends: bool = False) -> None:
        self._ledger = ledger
        self._engine = engine
        self._every_s = every_s
        self._notes_ends = notes_ends
        self._woken = asyncio.Event()
        self._expiries_seen = datetime.now(UTC) - LOOK_BACK
        self._ends_seen = datetime.now(UTC) - LOOK_BACK
        self._ends_known: dict[tuple[Workspace, JobId], datetime] = {}
        self._ends_due = 0.0
        self._told: dict[str, float] = {}
        self._stranded = Stranded(ledger, engine)
        self._reminder = Reminder(ledger, engine)

    def wake(self) -> None:
        """Something was changed and committed in this process."""
        self._woken.set()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                await self._expire()
                await self.deliver()
                await self._tell_of_answers()
                await self._reminder.tell()
                await self._stranded.release()
                if self._notes_ends and loop.time() >= self._ends_due:
                    await self._note_ends()
                    self._ends_due = loop.time() + ENDED_EVERY_S
            except Refused as refused:
                log.info("changes are not delivered now", code=refused.code)
            except Exception as error:  # noqa: BLE001 - the next sweep tries again; a silent end would tell nobody
                log.error("the sweep for changes failed", exc_info=error)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._woken.wait(), self._every_s)
            self._woken.clear()

    async def deliver(self) -> int:
        """Tells the jobs concerned of every change that nobody has delivered; how many there were. Raises Refused."""
        changes = await self._ledger.read(lambda conn: undelivered_changes(conn, limit=CHANGES_A_SWEEP))
        for change in changes:
            found = await self._ledger.read(lambda conn, one=change: _concerned(conn, one))
            jobs = [job for job in found if job.seen_change < change.change_no]  # the others were judged after it
            await self._tell(jobs, gate=change.kind in ("phase", "packet"))
            await self._ledger.write(lambda conn, one=change: mark_delivered(conn, one.change_no, datetime.now(UTC)))
        return len(changes)

    async def settled(self, workspace: Workspace, jobs: Iterable[JobId]) -> None:
        """Wakes the delivery, and waits until no write of these jobs is in the air, or `SETTLE_S`: who took their
        authority away may then say that nothing starts any more. Reads that had looked before leave by then, too."""
        self.wake()
        waiting = list(jobs)
        if not waiting:
            return
        await asyncio.sleep(READS_LEAVE_WITHIN_S)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_S):
                while waiting:
                    in_air = await self._ledger.read(
                        lambda conn: [job for job in waiting if open_effects(conn, workspace, job)]
                    )
                    if not in_air:
                        return
                    await asyncio.sleep(0.05)

    async def _tell(self, jobs: list[AuthorityRow], *, gate: bool) -> None:
        at_once = asyncio.Semaphore(AT_ONCE)

        async def tell(job: AuthorityRow) -> None:
            async with at_once:
                hint = self._engine.hint_gate if gate else self._engine.hint_authority
                await hint(job.workspace, job.job_id)

        await asyncio.gather(*(tell(job) for job in jobs))

    async def _tell_of_answers(self) -> None:
        """A vendor's answer whose hint was lost; one of a job that has ended is nobody's any more."""
        before = datetime.now(UTC) - ANSWER_TAKEN_WITHIN
        answers = await self._ledger.read(lambda conn: untold_answers(conn, before=before, limit=CHANGES_A_SWEEP))
        now = asyncio.get_running_loop().time()
        self._told = {token: at for token, at in self._told.items() if now - at < TOLD_AGAIN_S}
        for row in answers:
            if row.token_hash in self._told:
                continue
            self._told[row.token_hash] = now
            hint = CallbackHint(step=row.step, call=row.call)
            if not await self._engine.hint_callback(row.workspace, row.job_id, hint):
                await self._ledger.write(lambda conn, one=row: close_call(conn, one, datetime.now(UTC)))

    async def _expire(self) -> None:
        """A grant whose time is over is gone like a revoked one, and nobody says so but the clock."""
        since, now = self._expiries_seen, datetime.now(UTC)
        expired = await self._ledger.read(lambda conn: principals_expired(conn, since=since, until=now))

        def withdraw(conn: Connection) -> None:
            for workspace, principal in expired:
                if withdraw_authority(conn, workspace, principal, by="clock", at=now, reason=GRANT_EXPIRED):
                    announce(conn, workspace, at=now, kind="revocation", subject=principal)

        if expired:
            await self._ledger.write(withdraw)
        self._expiries_seen = now - OVERLAP

    async def _note_ends(self) -> None:
        """Jobs that the engine has closed are open no more."""
        now = datetime.now(UTC)
        closed = await self._engine.ended_since(self._ends_seen)
        if not closed or closed == self._ends_known:
            return
        open_ = await self._ledger.read(lambda conn: open_authorities(conn, None))
        ended = closed.keys() & {(job.workspace, job.job_id) for job in open_}
        ended -= await self._engine.open_among(ended)
        if ended:
            await self._ledger.write(lambda conn: mark_ended(conn, ended, now))
        # By the engine's word, not by our clock: one that was wrong for a while would leave ends unseen for ever.
        self._ends_known, self._ends_seen = closed, max(closed.values()) - OVERLAP
