"""Looks at one job: one `describe`, and beyond it only what the facts so far leave open.

The `view` query needs a worker, so it has a short timeout and a circuit breaker: a job that did not answer is asked
again after a growing pause, and when several jobs in a row did not, one question a second finds out who is back.
"""

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace

from pydantic import JsonValue

from facade.cursors import Cursor
from facade.log import Page, page_of
from facade.project import Look, ended, era, state_of
from facade.reader import Execution, Reader
from workflows.contract.ids import BlobRef, JobId, Workspace
from workflows.contract.job import TERMINAL, Status
from workflows.contract.steps import ViewOutput

QUERY_TIMEOUT_S = 1.5
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 5.0
ALL_PAUSE_S = 1.0
SILENT_JOBS = 3
"""So many jobs that did not answer, and none that did since: there is no worker, not a stuck job."""

Key = tuple[Workspace, JobId]


class Breaker:
    """Which jobs may be asked now. Times are the loop's, in seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._silent: dict[Key, tuple[int, float]] = {}
        self._in_a_row: set[Key] = set()
        self._all_until = 0.0

    def closed(self, key: Key) -> bool:
        """Whether to ask; while nobody answers, one caller a second is let through."""
        now = self._now()
        if now < self._silent.get(key, (0, 0.0))[1]:
            return False
        if len(self._in_a_row) < SILENT_JOBS:
            return True
        if now < self._all_until:
            return False
        self._all_until = now + ALL_PAUSE_S
        return True

    def answered(self, key: Key) -> None:
        self._silent.pop(key, None)
        self._in_a_row.clear()

    def silent(self, key: Key) -> None:
        times = self._silent.get(key, (0, 0.0))[0] + 1
        pause = min(FIRST_PAUSE_S * 2 ** (times - 1), LONGEST_PAUSE_S)
        if len(self._silent) > 10_000:
            self._silent.clear()
        self._silent[key] = (times, self._now() + pause)
        if len(self._in_a_row) < SILENT_JOBS:
            self._in_a_row.add(key)
            self._all_until = self._now() + ALL_PAUSE_S

    def pause(self, key: Key) -> float:
        """Seconds until this job may be asked again."""
        return max(self._silent.get(key, (0, 0.0))[1], self._all_until if self._in_a_row else 0.0) - self._now()


class Sight:
    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.breaker = Breaker(lambda: asyncio.get_running_loop().time())

    async def recorded(self, workspace: Workspace, job_id: JobId) -> Look:
        """What needs no worker: enough for every field but the events."""
        execution = await self.reader.execution(workspace, job_id)
        return await self.complete(workspace, job_id, Look(execution), events=False)

    async def page(
        self, workspace: Workspace, job_id: JobId, cursor: Cursor, limit: int, execution: Execution | None = None
    ) -> tuple[Look, Page | None]:
        """A look and the events after the cursor; no page where there is no execution.

        An open execution is asked for its view; an ended one only where its record does not reach its end.
        """
        execution = execution or await self.reader.execution(workspace, job_id)
        if execution is None:
            return Look(None), None
        after = cursor.place_in(state_of(Look(execution)).resets) or 0
        wanted = limit if after + limit > _archived(execution) else 0
        view = await self.ask(workspace, job_id, after, wanted) if execution.ending is None else None
        if view is not None and era(view.view) > era(state_of(Look(execution))):
            # Reset between the two looks, or not recorded yet: the description may be of the run before.
            execution = await self.reader.execution(workspace, job_id) or execution
            if (place := cursor.place_in(view.view.resets) or 0) != after:
                after = place
                view = await self.ask(workspace, job_id, after, limit)
        if view is not None and view.view.status in TERMINAL:
            # It ends; how, only the engine tells, and whether it accepted that end.
            execution, view = await self.reader.execution(workspace, job_id) or execution, None
        look = await self.complete(workspace, job_id, Look(execution, view=view), events=True)
        page = await page_of(self.reader, workspace, look, cursor, limit)
        if execution.ending is not None and not page.complete and len(page.events) < limit:
            look = replace(look, view=await self.ask(workspace, job_id, after, limit))
            page = await page_of(self.reader, workspace, look, cursor, limit)
        return look, page

    async def ask(self, workspace: Workspace, job_id: JobId, after: int, limit: int) -> ViewOutput | None:
        """The `view` query; None when nobody answers in time or nobody is worth asking now."""
        key = (workspace, job_id)
        if not self.breaker.closed(key):
            return None
        view = await self.reader.query(workspace, job_id, after, limit, QUERY_TIMEOUT_S)
        if view is None:
            self.breaker.silent(key)
        else:
            self.breaker.answered(key)
        return view

    async def complete(self, workspace: Workspace, job_id: JobId, look: Look, *, events: bool) -> Look:
        """Adds what the facts so far leave open: close event, newest step, doubt about a write, result."""
        execution = look.execution
        if execution is None:
            return look
        if execution.ending in ("completed", "failed"):
            told = execution.recorded is not None and execution.recorded.view.status in TERMINAL
            if events or not told:
                look = replace(look, record=await self.reader.end_record(workspace, job_id))
        if _needs_newest_step(look):
            look = replace(look, progress=await self.reader.newest_progress(workspace, job_id))
        view = state_of(look)
        if ended(look) and (view.last_event.seq is None or view.executed == "unknown"):
            look = replace(look, writes=await self.reader.writes(workspace, job_id))
        if view.status is Status.SUCCEEDED and view.result_ref is not None:
            look = replace(look, result=await self._result(workspace, view.result_ref))
        return look

    async def _result(self, workspace: Workspace, ref: BlobRef) -> JsonValue:
        try:
            return json.loads(await self.reader.blob(workspace, ref))
        except KeyError:
            return None  # erased


def _archived(execution: Execution) -> int:
    """Up to which event no worker has to be asked: the record names the segments."""
    return max((segment.last for segment in execution.recorded.segments), default=0) if execution.recorded else 0


def _needs_newest_step(look: Look) -> bool:
    """Whether only the history can tell of a step: `describe` shows none, and no worker told of it."""
    execution = look.execution
    assert execution is not None
    if execution.recorded is None or execution.memo.mode == "dry_run":
        return False
    if ended(look):
        return state_of(look).executed == "no"
    if look.view is not None or execution.recorded.view.status not in (Status.RUNNING, Status.CANCELING):
        return False
    return all(pending.progress is None for pending in execution.pending)
