"""Stock of the ledger as one workspace sees it: how many rows each table holds, and who wrote the newest of them.

Rows of other workspaces are left out, the runtime's are not. Whole tables are counted; of the newest rows each is told
apart, so that a change has an author or has none. Bookkeeping that follows older acts by itself is no change: that a
process still lives, that a job was confirmed or noted as ended, that a change was delivered, that an authority was
renewed. Read only.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from sqlalchemy import Connection, Table, and_, func, or_, select

from gateway.ledger import authority_tables as who
from gateway.ledger import catalog_tables as what
from gateway.ledger import tables as jobs
from gateway.seams import Flag
from workflows.contract.ids import Workspace

NEWEST_ROWS = 500
"""So many rows of each table are told apart; older ones are counted."""

STATE, APPROVAL = Flag.STATE_MUTATED, Flag.APPROVAL_CONSUMED
CONFIG, PHASE, PROCESS = Flag.CONFIG_CHANGED, Flag.PHASE_PROMOTED, Flag.PROCESS_STARTED

_BY_ACTION: Mapping[str, Flag] = {
    **dict.fromkeys(("promotion", "demotion"), PHASE),
    "packet": APPROVAL,
    "request": APPROVAL,
    **dict.fromkeys(("grant", "api_key", "workspace", "principal", "plugin", "release"), CONFIG),
}
_BY_KIND: Mapping[str, Flag] = {
    "phase": PHASE,
    "packet": APPROVAL,
    **dict.fromkeys(("grant", "revocation", "key", "withdrawal"), CONFIG),
}


@dataclass(frozen=True, slots=True)
class Row:
    """`flag`: what it is that such a row was added (or, `moved`, changed). `by`: who wrote it, where the row says so;
    `job`: the job it belongs to. `state`: a digest of the columns that may change."""

    flag: Flag
    moved: Flag
    by: str | None
    job: str | None
    state: str


@dataclass(frozen=True, slots=True)
class TableStock:
    """`marks`: count and the greatest value of each column that may change, over the whole table."""

    count: int
    marks: tuple[Any, ...]
    rows: Mapping[str, Row]


@dataclass(frozen=True, slots=True)
class Watched:
    """A table, the columns that order it (newest last), that say who wrote a row and that may change."""

    table: Table
    flag: Flag
    key: tuple[str, ...]
    newest: str
    by: tuple[str, ...] = ()
    job: str | None = None
    state: tuple[str, ...] = ()
    moved: Flag | None = None
    also: tuple[str, ...] = ()
    read: Callable[[Mapping[Any, Any]], tuple[Flag | None, str | None]] = lambda _row: (None, None)
    """What the `also` columns tell of a row: its flag and its job."""


def _of_audit(row: Mapping[Any, Any]) -> tuple[Flag, str | None]:
    action, detail = str(row["action"]), row["detail"]
    family = action.partition(".")[0]
    of_job = family in ("job", "request", "authority")
    job = str(row["subject"]).partition("/")[0] if of_job else detail.get("job")
    return STATE if action == "packet.proposed" else _BY_ACTION.get(family, STATE), job


def _of_change(row: Mapping[Any, Any]) -> tuple[Flag, str | None]:
    return _BY_KIND.get(row["kind"], STATE), row["subject"] if row["kind"] == "packet" else None


WATCHED: tuple[Watched, ...] = (
    Watched(
        jobs.receipts, STATE, ("job_id",), "seq", ("principal",), "job_id", ("refused_at", "reserved_at", "erased_at")
    ),
    Watched(who.authorities, STATE, ("job_id",), "minted_at", ("submitted_by",), "job_id", ("revoked_at",)),
    Watched(
        jobs.sessions,
        STATE,
        ("session",),
        "at",
        ("by",),
        "last_job",
        ("last_job", "conversation", "head_step", "head_attempt"),
    ),
    Watched(jobs.stops, STATE, ("job_id",), "requested_at", ("by",), "job_id"),
    Watched(
        jobs.effects,
        STATE,
        ("effect_id",),
        "sent_at",
        job="job_id",
        state=("state", "epoch", "sent_at", "finished_at", "outcome_ref", "attempt", "request_id"),
    ),
    Watched(
        jobs.callbacks,
        STATE,
        ("token_hash",),
        "opened_at",
        job="job_id",
        state=("answered_at", "closed_at", "outcome", "result_ref"),
    ),
    Watched(who.usage, STATE, ("job_id", "step", "call", "attempt"), "at", job="job_id"),
    Watched(what.evidence, STATE, ("evidence_no",), "evidence_no", ("by",)),
    Watched(what.artifacts, STATE, ("artifact_id",), "at", ("by",), "job_id", ("erased_at",)),
    Watched(jobs.votes, APPROVAL, ("job_id", "request_id", "principal"), "at", ("principal",), "job_id"),
    Watched(jobs.decisions, APPROVAL, ("job_id", "request_id"), "decided_at", job="job_id"),
    Watched(
        what.packets,
        STATE,
        ("packet_id",),
        "at",
        ("author",),
        "job_id",
        ("approved_by", "approved_at", "revoked_by", "revoked_at", "redeemed_run", "redeemed_at"),
        moved=APPROVAL,
    ),
    Watched(
        what.plugin_versions, CONFIG, ("name", "version"), "published_at", ("published_by",), state=("withdrawn_at",)
    ),
    Watched(what.deployments, CONFIG, ("plugin", "revision"), "at", ("by",)),
    Watched(what.releases, CONFIG, ("plugin", "revision"), "at", ("by",)),
    Watched(who.grants, CONFIG, ("grant_id",), "at", ("by",), state=("revoked_at",)),
    Watched(who.api_keys, CONFIG, ("key_id",), "at", ("by",), state=("revoked_at",)),
    Watched(who.workspaces, CONFIG, ("name",), "at", ("by",)),
    Watched(what.promotions, PHASE, ("revision",), "revision", ("approved_by", "by")),
    Watched(
        jobs.audit,
        STATE,
        ("audit_no",),
        "audit_no",
        ("actor",),
        also=("action", "subject", "detail"),
        read=_of_audit,
    ),
    Watched(jobs.changes, STATE, ("change_no",), "change_no", also=("kind", "subject"), read=_of_change),
    Watched(jobs.processes, PROCESS, ("process_id",), "started_at", state=("build", "config"), moved=CONFIG),
)
"""Every table; a test holds it against the metadata."""


def take_stock(conn: Connection, workspace: Workspace) -> Mapping[str, TableStock]:
    """Of every table, in one transaction."""
    return {watched.table.name: _stock(conn, watched, workspace) for watched in WATCHED}


def _stock(conn: Connection, watched: Watched, workspace: Workspace) -> TableStock:
    columns = watched.table.c
    scope = and_(True)
    if "workspace" in columns:
        own = columns.workspace == workspace
        scope = or_(own, columns.workspace.is_(None)) if columns.workspace.nullable else own
    marks = [part for name in watched.state for part in (func.count(columns[name]), func.max(columns[name]))]
    count, *found = conn.execute(select(func.count(), *marks).select_from(watched.table).where(scope)).one()
    named = list(dict.fromkeys((*watched.key, *watched.by, *_one(watched.job), *watched.state, *watched.also)))
    newest = select(*(columns[name] for name in named)).where(scope).order_by(columns[watched.newest].desc())
    rows = conn.execute(newest.limit(NEWEST_ROWS)).mappings()
    return TableStock(
        count, tuple(found), {"/".join(str(row[name]) for name in watched.key): _row(watched, row) for row in rows}
    )


def _row(watched: Watched, row: Mapping[Any, Any]) -> Row:
    flag, job = watched.read(row)
    state = json.dumps([row[name] for name in watched.state], default=str)
    return Row(
        flag=flag or watched.flag,
        moved=watched.moved or flag or watched.flag,
        by=next((row[name] for name in watched.by if row[name] is not None), None),
        job=job or (row[watched.job] if watched.job else None),
        state=sha256(state.encode()).hexdigest()[:16],
    )


def _one(name: str | None) -> tuple[str, ...]:
    return () if name is None else (name,)
