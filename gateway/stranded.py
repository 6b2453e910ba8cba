"""Canceled jobs that nobody ends: their build is gone, the code that runs now can not go on with their history, or
whoever wrote the stop died before it told the engine.

The stop stands in the ledger, so nothing of such a job is permitted any more; what is left is to end it. One whose
build has no live worker is let to the current build, which winds it down as its own. One whose workflow tasks fail is
ended in the engine, and reads as canceled. Jobs without a stop are never touched.
"""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from temporalio.api.enums.v1 import WorkflowExecutionStatus

from gateway.ledger.authorities import mark_ended
from gateway.ledger.engine import Ledger
from gateway.ledger.presence import ProcessRow, live_processes
from gateway.ledger.stops import StopRow, open_stops
from gateway.records import execution_of, pinned_build
from gateway.telemetry import log
from gateway.temporal import Engine

WINDS_DOWN_WITHIN = timedelta(seconds=3)
"""So long a canceled job is left to its own worker."""
LOOKED_AT = 100
EVERY_S = 2.0


class Stranded:
    """One per process; several may do the same at once."""

    def __init__(self, ledger: Ledger, engine: Engine) -> None:
        self._ledger = ledger
        self._engine = engine
        self._due = 0.0

    async def release(self) -> None:
        """Looks at canceled jobs that are still open. Raises Refused."""
        clock = asyncio.get_running_loop().time()
        if clock < self._due:
            return
        self._due = clock + EVERY_S
        now = datetime.now(UTC)
        stops = await self._ledger.read(lambda conn: open_stops(conn, before=now - WINDS_DOWN_WITHIN, limit=LOOKED_AT))
        if not stops:
            return
        rows = await self._ledger.read(lambda conn: live_processes(conn, now))
        live = [row for row in rows if row.kind == "worker"]
        for stop in stops:
            await self._end(stop, live)

    async def _end(self, stop: StopRow, live: Sequence[ProcessRow]) -> None:
        job = stop.workspace, stop.job_id
        found = await self._engine.histories.described(*job)
        if found is None:
            return
        if found.workflow_execution_info.status != WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_RUNNING:
            await self._ledger.write(lambda conn: mark_ended(conn, [job], datetime.now(UTC)))
            return
        execution = execution_of(found)
        if execution is None:
            return
        lane = self._engine.lane_of(found.execution_config.task_queue.name)
        builds = {row.build for row in live if row.lane == lane}
        if not found.workflow_extended_info.cancel_requested:
            await self._engine.cancel(*job)
        elif execution.workflow_task_failing and await self._engine.histories.task_failed(*job):
            log.info("a canceled job that no worker can go on with is ended", job=stop.job_id)
            await self._engine.end_stopped(*job)
        elif builds and (build := pinned_build(found)) is not None and build not in builds:
            log.info("a canceled job whose build is gone goes to the current build", job=stop.job_id, build=build)
            await self._engine.unpin(*job)
