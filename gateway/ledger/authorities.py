"""Execution authorities: on whose grants each job runs, until when, and whether that was taken away.

Minted with the receipt, in its transaction. It is short-lived: whoever calls renews it against the grants of that
moment (`gateway.calls.permits`). Revoked is for ever: a later grant brings no authority back. `ended_at` is set once
the engine is known to have closed the job, so that open jobs can be counted and told; a job that an operator reset is
open again. Whether grants suffice is judged elsewhere.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, bindparam, exists, or_, select, update

from gateway.ledger.authority_tables import authorities, grants
from gateway.ledger.tables import changes, columns_of, insert_if_absent
from workflows.contract.ids import Digest, JobId, PluginName, PrincipalId, Workspace


@dataclass(frozen=True)
class NewAuthority:
    """`principal`: whose grants and bill; `submitted_by`: who called, which gives no authority of its own to a job that
    runs on an agent. `credential` is the id of the API key that submitted it, None for a signed token. `seen_change` is
    the number of the last change that admission saw."""

    workspace: Workspace
    job_id: JobId
    principal: PrincipalId
    submitted_by: PrincipalId
    credential: str | None
    plugin: PluginName
    version: str
    snapshot: Digest
    model: str
    limits: Mapping[str, Any]
    seen_change: int
    minted_at: datetime
    expires_at: datetime


@dataclass(frozen=True)
class AuthorityRow(NewAuthority):
    revoked_at: datetime | None
    revoked_reason: str | None
    ended_at: datetime | None


_COLUMNS = columns_of(AuthorityRow, authorities)
_INSERT = insert_if_absent(authorities)
_THIS = (authorities.c.workspace == bindparam("of_workspace"), authorities.c.job_id == bindparam("of_job"))
_FIND = select(*_COLUMNS).where(*_THIS)
_OUTDATED = _FIND.where(
    exists().where(
        changes.c.change_no > authorities.c.seen_change,
        or_(changes.c.workspace == authorities.c.workspace, changes.c.workspace.is_(None)),
    )
)
_HOLD = _FIND.with_for_update(read=True)
_RENEW = (
    update(authorities)
    .where(*_THIS, authorities.c.revoked_at.is_(None), authorities.c.expires_at < bindparam("until"))
    .values(expires_at=bindparam("until"))
)
_REVOKE = (
    update(authorities)
    .where(*_THIS, authorities.c.revoked_at.is_(None))
    .values(revoked_at=bindparam("at"), revoked_reason=bindparam("reason"))
    .returning(authorities.c.job_id)
)
_END = update(authorities).where(*_THIS, authorities.c.ended_at.is_(None)).values(ended_at=bindparam("at"))
_REOPEN = update(authorities).where(*_THIS, authorities.c.ended_at.is_not(None)).values(ended_at=None)


def insert_authority(conn: Connection, new: NewAuthority) -> None:
    """One per job; a key that is reserved anew keeps the first one's row until `replace_authority`."""
    conn.execute(_INSERT, vars(new))


def replace_authority(conn: Connection, new: NewAuthority) -> None:
    """For a key that is reserved anew after the engine refused it: nothing ran on the old one."""
    values = {**vars(new), "revoked_at": None, "revoked_reason": None, "ended_at": None}
    changed = update(authorities).where(*_THIS).values(values)
    conn.execute(changed, {"of_workspace": new.workspace, "of_job": new.job_id})


def find_authority(conn: Connection, workspace: Workspace, job_id: JobId, *, hold: bool = False) -> AuthorityRow | None:
    """`hold`: nobody takes it away before the transaction ends (SQLite has one writer at a time anyway)."""
    query = _HOLD if hold else _FIND
    row = conn.execute(query, {"of_workspace": workspace, "of_job": job_id}).first()
    return None if row is None else AuthorityRow(*row)


def outdated_authority(conn: Connection, workspace: Workspace, job_id: JobId) -> AuthorityRow | None:
    """The job's authority, if something changed in its workspace (or for all) since its admission looked."""
    row = conn.execute(_OUTDATED, {"of_workspace": workspace, "of_job": job_id}).first()
    return None if row is None else AuthorityRow(*row)


def renew_authority(conn: Connection, workspace: Workspace, job_id: JobId, until: datetime) -> None:
    """Moves its end on; a revoked one stays as it is."""
    conn.execute(_RENEW, {"of_workspace": workspace, "of_job": job_id, "until": until})


def revoke_authority(conn: Connection, workspace: Workspace, job_id: JobId, *, reason: str, at: datetime) -> bool:
    """Takes a job's authority away for good. False: it was taken before, or there is none."""
    of = {"of_workspace": workspace, "of_job": job_id, "at": at, "reason": reason}
    return conn.execute(_REVOKE, of).first() is not None


def mark_ended(conn: Connection, jobs: Iterable[tuple[Workspace, JobId]], at: datetime) -> None:
    """The engine has closed these jobs."""
    for workspace, job_id in sorted(jobs):
        conn.execute(_END, {"of_workspace": workspace, "of_job": job_id, "at": at})


def mark_open(conn: Connection, workspace: Workspace, job_id: JobId) -> None:
    """A job that calls is open, whatever was known of it before."""
    conn.execute(_REOPEN, {"of_workspace": workspace, "of_job": job_id})


def principals_expired(conn: Connection, *, since: datetime, until: datetime) -> list[tuple[Workspace, PrincipalId]]:
    """Whose grants reached the end of their time after `since` and not after `until`."""
    rows = conn.execute(
        select(grants.c.workspace, grants.c.principal)
        .where(grants.c.expires_at > since, grants.c.expires_at <= until, grants.c.revoked_at.is_(None))
        .distinct()
        .order_by(grants.c.workspace, grants.c.principal)
    )
    return [(workspace, principal) for workspace, principal in rows]


def open_authorities(
    conn: Connection,
    workspace: Workspace | None,
    *,
    principal: PrincipalId | None = None,
    credential: str | None = None,
    plugin: PluginName | None = None,
    version: str | None = None,
    limit: int | None = None,
) -> list[AuthorityRow]:
    """Of jobs that are not known to have ended, oldest first. None = any."""
    wanted: list[tuple[ColumnElement[Any], Any]] = [
        (authorities.c.workspace, workspace),
        (authorities.c.principal, principal),
        (authorities.c.credential, credential),
        (authorities.c.plugin, plugin),
        (authorities.c.version, version),
    ]
    query = select(*_COLUMNS).where(
        authorities.c.ended_at.is_(None), *(column == value for column, value in wanted if value is not None)
    )
    rows = conn.execute(query.order_by(authorities.c.minted_at, authorities.c.job_id).limit(limit))
    return [AuthorityRow(*row) for row in rows]
