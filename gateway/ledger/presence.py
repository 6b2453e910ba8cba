"""Which API and worker processes live, and what each of them is: one row per process start, refreshed while it lives.

A row says of itself until when it may be believed. One that is past that, or says that it stopped, is no live process,
whatever the engine still remembers of it. Nothing is judged here, and no row is ever deleted.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import Connection, Row, bindparam, select, update

from gateway.ledger.tables import columns_of, insert_if_absent, processes

ProcessKind = Literal["api", "worker"]


@dataclass(frozen=True)
class NewProcess:
    """`identity`: a worker's as the engine lists its pollers, an API's of the same form. `lane`: a worker's. `build`
    and `config`: digests (gateway/presence.py). `tools`: the Python tools that a worker has installed."""

    process_id: str
    kind: ProcessKind
    identity: str
    lane: str | None
    pid: int
    host: str
    build: str
    config: str
    tools: tuple[str, ...]
    started_at: datetime


@dataclass(frozen=True)
class Seen:
    """What changes while it lives. `good_until`: later than that without another word it is dead. `warnings`: log
    lines of level warning or above within the last hour; `last_warning`: the event of the last one."""

    seen_at: datetime
    good_until: datetime
    warnings: int
    last_warning: str | None


@dataclass(frozen=True)
class ProcessRow(NewProcess, Seen):
    stopped_at: datetime | None

    def lives(self, now: datetime) -> bool:
        return self.stopped_at is None and self.good_until > now


_COLUMNS = columns_of(ProcessRow, processes)
_THIS = processes.c.process_id == bindparam("of_process")
_REFRESH = (
    update(processes)
    .where(_THIS)
    .values(
        seen_at=bindparam("at"),
        good_until=bindparam("until"),
        warnings=bindparam("counted"),
        last_warning=bindparam("last"),
    )
    .returning(processes.c.process_id)
)
_STOP = update(processes).where(_THIS).values(stopped_at=bindparam("at"))
_LIVE = (
    select(*_COLUMNS)
    .where(processes.c.stopped_at.is_(None), processes.c.good_until > bindparam("now", type_=processes.c.seen_at.type))
    .order_by(processes.c.started_at, processes.c.process_id)
)
_RECENT = (
    select(*_COLUMNS)
    .where(processes.c.good_until > bindparam("since", type_=processes.c.seen_at.type))
    .order_by(processes.c.started_at.desc(), processes.c.process_id)
)


def note_process(conn: Connection, process: NewProcess, seen: Seen) -> None:
    """That it lives: its row refreshed, or written where there is none yet."""
    refreshed = conn.execute(
        _REFRESH,
        {
            "of_process": process.process_id,
            "at": seen.seen_at,
            "until": seen.good_until,
            "counted": seen.warnings,
            "last": seen.last_warning,
        },
    ).first()
    if refreshed is None:
        conn.execute(insert_if_absent(processes), {**asdict(process), **asdict(seen)})


def stop_process(conn: Connection, process_id: str, at: datetime) -> None:
    """It ended by itself, cleanly."""
    conn.execute(_STOP, {"of_process": process_id, "at": at})


def live_processes(conn: Connection, now: datetime) -> Sequence[ProcessRow]:
    """Those that said within their own rhythm that they live, the longest running first."""
    return [_row(row) for row in conn.execute(_LIVE, {"now": now})]


def recent_processes(conn: Connection, since: datetime) -> Sequence[ProcessRow]:
    """Live, stopped and dead ones that were alive after `since`, the newest first."""
    return [_row(row) for row in conn.execute(_RECENT, {"since": since})]


def _row(row: Row[Any]) -> ProcessRow:
    process = ProcessRow(*row)
    return replace(process, tools=tuple(process.tools))
