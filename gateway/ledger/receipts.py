"""Receipts: the proof of admission, one row per key for ever (design.md section 6, the receipt protocol).

A row is reserved, then accepted or refused; each move is one compare-and-set statement, so racing gateways converge.
Nothing here starts a workflow or judges a request.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, bindparam, select, update

from gateway.ledger.tables import columns_of, insert_if_absent, receipts
from workflows.contract.ids import Digest, JobId, PluginName, PrincipalId, Workspace
from workflows.contract.job import Mode


@dataclass(frozen=True)
class NewReceipt:
    """What a reservation keeps: the receipt to the byte, and all that starting the job again would need."""

    workspace: Workspace
    job_id: JobId
    fingerprint: Digest
    principal: PrincipalId
    plugin: PluginName
    version: str
    plugin_digest: Digest
    snapshot: Digest
    mode: Mode
    session: str | None
    retry_of: JobId | None
    line: JobId | None
    """Of a retry: the first job of its line (`gateway.ledger.lines`)."""
    receipt: bytes
    job_input: bytes
    start_input: bytes
    labels: Mapping[str, str]
    initiator: Mapping[str, str] | None
    deadline_at: datetime
    reserved_at: datetime


@dataclass(frozen=True)
class ReceiptRow(NewReceipt):
    seq: int
    confirmed_at: datetime | None
    refused_at: datetime | None
    erased_at: datetime | None = None
    """Since when the job's content is gone: `job_input` is empty then."""
    first_run: str | None = None
    """The engine's run that the job began with; None where that was not recorded (rows of earlier releases)."""

    @property
    def accepted(self) -> bool:
        return self.confirmed_at is not None


@dataclass(frozen=True)
class Reservation:
    """The row that holds the key now; `created` says whether this call put it there."""

    created: bool
    row: ReceiptRow


@dataclass(frozen=True)
class ReceiptFilter:
    """None = any. `plugins` are those that the caller has a grant for."""

    plugin: PluginName | None = None
    session: str | None = None
    plugins: Set[PluginName] | None = None


_COLUMNS = columns_of(ReceiptRow, receipts)
_THIS = (receipts.c.workspace == bindparam("of_workspace"), receipts.c.job_id == bindparam("of_job"))
_NOT_ACCEPTED = receipts.c.confirmed_at.is_(None)

_FIND = select(*_COLUMNS).where(*_THIS)
_LOCK = select(receipts.c.seq).where(*_THIS).with_for_update(key_share=True)
_RESERVE = insert_if_absent(receipts).returning(*_COLUMNS)
_RESERVE_ANEW = (
    update(receipts)
    .where(
        *_THIS, _NOT_ACCEPTED, receipts.c.refused_at.is_not(None), receipts.c.fingerprint == bindparam("of_fingerprint")
    )
    .returning(*_COLUMNS)
)
# An engine that knows the job is right, and a refusal that raced with it is not.
_ACCEPT = (
    update(receipts)
    .where(*_THIS, _NOT_ACCEPTED)
    .values(confirmed_at=bindparam("at"), refused_at=None, first_run=bindparam("by_run"))
    .returning(receipts.c.seq)
)
_ADOPT = (
    update(receipts)
    .where(*_THIS, _NOT_ACCEPTED, receipts.c.fingerprint == bindparam("of_fingerprint"))
    .values(
        receipt=bindparam("to_receipt"),
        version=bindparam("to_version"),
        plugin_digest=bindparam("to_digest"),
        snapshot=bindparam("to_snapshot"),
        deadline_at=bindparam("to_deadline"),
        reserved_at=bindparam("to_reserved"),
    )
    .returning(*_COLUMNS)
)
_REFUSE = (
    update(receipts)
    .where(*_THIS, _NOT_ACCEPTED, receipts.c.refused_at.is_(None))
    .values(refused_at=bindparam("at"))
    .returning(receipts.c.seq)
)


def find_receipt(conn: Connection, workspace: Workspace, job_id: JobId) -> ReceiptRow | None:
    row = conn.execute(_FIND, {"of_workspace": workspace, "of_job": job_id}).first()
    return None if row is None else ReceiptRow(*row)


def reserve(conn: Connection, new: NewReceipt) -> Reservation:
    """Takes the key if it is free. A key once taken stays with its first row, whatever `new` says."""
    row = conn.execute(_RESERVE, vars(new)).first()
    if row is not None:
        return Reservation(True, ReceiptRow(*row))
    taken = find_receipt(conn, new.workspace, new.job_id)
    if taken is None:
        raise LookupError("a receipt that conflicts must be there: rows are never deleted")
    return Reservation(False, taken)


def reserve_anew(conn: Connection, new: NewReceipt) -> ReceiptRow | None:
    """Reserves a refused key again, for the same content; None when somebody else was first or it is not refused."""
    row = conn.execute(
        _RESERVE_ANEW.values(**vars(new), refused_at=None),
        {"of_workspace": new.workspace, "of_job": new.job_id, "of_fingerprint": new.fingerprint},
    ).first()
    return None if row is None else ReceiptRow(*row)


def accept(conn: Connection, workspace: Workspace, job_id: JobId, at: datetime, first_run: str | None = None) -> bool:
    """The engine knows the job. True when this call recorded it, False when it was known (or there is no such row)."""
    of = {"of_workspace": workspace, "of_job": job_id, "at": at, "by_run": first_run}
    return conn.execute(_ACCEPT, of).first() is not None


def adopt(conn: Connection, of: NewReceipt) -> ReceiptRow | None:
    """A reservation that is younger than the job which the engine holds for it says what that job's receipt said. None
    where the row was accepted meanwhile."""
    values = {
        "of_workspace": of.workspace,
        "of_job": of.job_id,
        "of_fingerprint": of.fingerprint,
        "to_receipt": of.receipt,
        "to_version": of.version,
        "to_digest": of.plugin_digest,
        "to_snapshot": of.snapshot,
        "to_deadline": of.deadline_at,
        "to_reserved": of.reserved_at,
    }
    row = conn.execute(_ADOPT, values).first()
    return None if row is None else ReceiptRow(*row)


def mark_refused(conn: Connection, workspace: Workspace, job_id: JobId, at: datetime) -> bool:
    """The engine refused the start for good. An accepted row stays as it is."""
    return conn.execute(_REFUSE, {"of_workspace": workspace, "of_job": job_id, "at": at}).first() is not None


def lock_job(conn: Connection, workspace: Workspace, job_id: JobId) -> bool:
    """Holds the job's row until the transaction ends: stops, votes and permits of one job happen one by one.

    False when there is no such job. (SQLite has one writer at a time anyway and takes no row lock.)
    """
    return conn.execute(_LOCK, {"of_workspace": workspace, "of_job": job_id}).first() is not None


def dry_runs_of(
    conn: Connection, workspace: Workspace, *, plugin: PluginName | None, digest: Digest | None, limit: int
) -> list[ReceiptRow]:
    """Accepted dry runs, newest first; of one digest of a plugin, or any."""
    query = select(*_COLUMNS).where(
        receipts.c.workspace == workspace, receipts.c.mode == "dry_run", receipts.c.confirmed_at.is_not(None)
    )
    if plugin is not None:
        query = query.where(receipts.c.plugin == plugin, receipts.c.plugin_digest == digest)
    return [ReceiptRow(*row) for row in conn.execute(query.order_by(receipts.c.seq.desc()).limit(limit))]


def list_receipts(
    conn: Connection, workspace: Workspace, wanted: ReceiptFilter, *, before_seq: int | None, limit: int
) -> list[ReceiptRow]:
    """Newest first by acceptance; the next page goes on before the last row's `seq`. Refused rows are left out."""
    query = select(*_COLUMNS).where(receipts.c.workspace == workspace, receipts.c.refused_at.is_(None))
    if before_seq is not None:
        query = query.where(receipts.c.seq < before_seq)
    if wanted.plugin is not None:
        query = query.where(receipts.c.plugin == wanted.plugin)
    if wanted.session is not None:
        query = query.where(receipts.c.session == wanted.session)
    if wanted.plugins is not None:
        query = query.where(receipts.c.plugin.in_(sorted(wanted.plugins)))
    rows = conn.execute(query.order_by(receipts.c.seq.desc()).limit(limit))
    return [ReceiptRow(*row) for row in rows]
