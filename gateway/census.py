"""A census: everything that a smoke may not change, as one frozen value. Taken twice, and compared by
`gateway.comparing`.

Taking one reads and changes nothing. It is bounded, and says in `bounds` what was only counted or left out.
"""

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from sqlalchemy import Connection

from gateway.doors import Doors
from gateway.executions import Execution, Growth, Listing, growth_of, listed_since, look_at, polling
from gateway.ledger.authorities import open_authorities
from gateway.ledger.census import NEWEST_ROWS, TableStock, take_stock
from gateway.ledger.journal import undelivered_changes
from gateway.ledger.presence import ProcessRow, live_processes
from workflows.contract.ids import JobId, Workspace

OPEN_JOBS = 1_000
"""So many open jobs are described; the newest of them."""
LAG_S = 2.0
"""What visibility lags at most, and so how long a second census waits before it asks."""
CLOCKS_DIFFER = timedelta(seconds=10)
"""The engine's clock and this process's may be so far apart."""
DELIVERED_WITHIN_S = 3.0


@dataclass(frozen=True)
class Census:
    """`listed`: executions that began shortly before the first census, or later. `grown`: what was added to histories
    of open jobs since the first one."""

    at: datetime
    tables: Mapping[str, TableStock]
    executions: Mapping[JobId, Execution]
    listed: Listing
    blobs: tuple[int, int]
    processes: tuple[ProcessRow, ...]
    pollers: Mapping[str, frozenset[str]]
    children: Mapping[int, str]
    bounds: tuple[str, ...]
    grown: Mapping[JobId, Growth] = field(default_factory=dict[JobId, Growth])

    @property
    def history_events(self) -> int:
        return sum(one.length for one in self.executions.values())

    @property
    def attempts(self) -> int:
        return sum(one.attempts for one in self.executions.values())


async def settle(doors: Doors) -> bool:
    """Waits until running jobs were told of every change there is, so that no hint of an older act comes in between.
    False where that takes longer than `DELIVERED_WITHIN_S`."""
    try:
        async with asyncio.timeout(DELIVERED_WITHIN_S):
            while await doors.ledger.read(lambda conn: undelivered_changes(conn, limit=1)):
                await asyncio.sleep(0.05)
    except TimeoutError:
        return False
    return True


async def take(doors: Doors, workspace: Workspace, first: Census | None = None) -> Census:
    """Raises Refused where engine, ledger or blobs do not answer. `first`: the one that this is compared with."""
    if first is not None:
        await asyncio.sleep(LAG_S)
    at = datetime.now(UTC)
    since = (first.at if first else at) - CLOCKS_DIFFER
    queues = {lane: one.task_queue for lane, one in doors.settings.lanes.items()}

    def read(conn: Connection) -> tuple[Mapping[str, TableStock], list[JobId], tuple[ProcessRow, ...]]:
        open_ = [row.job_id for row in open_authorities(conn, workspace)]
        return take_stock(conn, workspace), open_, tuple(live_processes(conn, at))

    tables, open_, processes = await doors.ledger.read(read)
    jobs = [*first.executions] if first is not None else open_[-OPEN_JOBS:]
    histories = doors.engine.histories
    executions, listed, pollers, blobs = await asyncio.gather(
        look_at(histories, workspace, jobs),
        listed_since(histories, workspace, since, queues.values()),
        polling(histories, queues),
        doors.blobs.stock(workspace),
    )
    grown: dict[JobId, Growth] = {}
    before: Mapping[JobId, Execution] = first.executions if first is not None else {}
    for job, seen in before.items():
        if executions.get(job, seen) != seen:
            grown[job] = await growth_of(histories, workspace, job, seen)
    return Census(
        at=at,
        tables=tables,
        executions=executions,
        listed=listed,
        blobs=(blobs.count, blobs.size),
        processes=processes,
        pollers=pollers,
        children=await asyncio.to_thread(children_of, os.getpid()),
        bounds=tuple(_bounds(tables, len(open_), whole=listed.whole, blobs_whole=blobs.whole)),
        grown=grown,
    )


def _bounds(tables: Mapping[str, TableStock], open_jobs: int, *, whole: bool, blobs_whole: bool) -> list[str]:
    said = [
        f"{name}: {stock.count} rows were counted, the newest {NEWEST_ROWS} told apart"
        for name, stock in tables.items()
        if stock.count > NEWEST_ROWS
    ]
    if open_jobs > OPEN_JOBS:
        said.append(f"{open_jobs} jobs are open, the newest {OPEN_JOBS} were described")
    if not whole:
        said.append("so many executions began lately that not all were told apart")
    if not blobs_whole:
        said.append("there are more blobs than are counted")
    return said


def children_of(pid: int) -> Mapping[int, str]:
    """Processes below this one, of any depth: pid -> when it started, so that a number used again is another. Empty
    where there is no /proc."""
    parents: dict[int, tuple[int, str]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        parents[int(folder.name)] = int(fields[1]), fields[19]
    found: dict[int, str] = {}
    below = {pid}
    while below:
        below = {child for child, (parent, _) in parents.items() if parent in below and child not in found}
        found.update({child: parents[child][1] for child in below})
    return found
