"""The window: every read that an app or an approver may ask for, from facts to answer. Looking changes nothing.

Whoever has `jobs:read` and a grant on the plugin reads every such job of the workspace; a job of another workspace is
as unknown as one that never was. Routes translate HTTP and call one method here.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

from pydantic import JsonValue

from facade.cursors import Cursor, cursor_after, write_cursor, write_place
from facade.log import Page
from facade.project import Look, content_erased, ended, no_execution, not_found, project, state_of
from facade.reader import Health, LedgerFacts, ReadAction, Reader, Viewer
from facade.sight import Sight
from facade.views import EventAnswer, JobAnswer, JobItem, JobList
from facade.watch import Watch, Watchers
from workflows.contract.errors import ProblemCode, Refused
from workflows.contract.ids import KEY, JobId, PluginName
from workflows.contract.job import Status

T = TypeVar("T")

SETTLE_S = 2.0
CUT_OFF_AFTER_S = 1.0
LIST_AT_ONCE = 16
SCANNED_AT_MOST = 500
"""Receipts that one page of a list filtered by status looks at; the next page goes on from there."""


@dataclass(frozen=True, slots=True)
class JobFilter:
    status: Status | None = None
    session: str | None = None
    plugin: PluginName | None = None


@dataclass(frozen=True, slots=True)
class Published:
    """A result that is an artifact: where it is."""

    url: str


class Window:
    def __init__(self, reader: Reader, watchers: Watchers) -> None:
        self.reader = reader
        self.sight: Sight = watchers.sight
        self.watchers = watchers

    async def job(self, viewer: Viewer, job_id: JobId) -> JobAnswer:
        """The job without events; ledger and engine are asked at the same time."""
        ledger, look = await _both(
            self.admitted(viewer, job_id, "jobs:read"), self.sight.recorded(viewer.workspace, job_id)
        )
        if (watch := self.watchers.present(viewer.workspace, job_id)) is not None:
            watch.tell(look)
        return _projected(look, ledger)

    async def job_after(self, viewer: Viewer, job_id: JobId, cursor: Cursor, limit: int) -> JobAnswer:
        """The job with the events after a cursor, as far as they are known now."""
        watch = self.watchers.present(viewer.workspace, job_id)
        if watch is not None and _tells_all(watch, cursor) and await watch.settle(SETTLE_S):
            ledger = await self.admitted(viewer, job_id, "jobs:read")
            if _tells_all(watch, cursor):
                return _watched(watch, ledger, cursor, limit)
        ledger, (look, page) = await _both(
            self.admitted(viewer, job_id, "jobs:read"), self.sight.page(viewer.workspace, job_id, cursor, limit)
        )
        if watch is not None:
            watch.tell(look)
        answer = _projected(look, ledger)
        return answer if page is None else _with_events(answer, look, page)

    async def job_once_later(
        self, viewer: Viewer, job_id: JobId, cursor: Cursor, limit: int, wait_s: float
    ) -> JobAnswer:
        """The job as soon as an event follows the cursor or it ends, after `wait_s` seconds or at shutdown."""
        ledger = await self.admitted(viewer, job_id, "jobs:read")
        until = asyncio.get_running_loop().time() + wait_s
        async with self.watchers.following(viewer.workspace, job_id, cursor) as watch:
            while not (await watch.read(cursor) or watch.over(cursor) or self.watchers.draining):
                left = until - asyncio.get_running_loop().time()
                if left <= 0:
                    break
                await asyncio.wait({watch.changed}, timeout=left)
                await watch.cover(cursor)
            ledger = await self.admitted(viewer, job_id, "jobs:read")
            if _tells_all(watch, cursor):
                return _watched(watch, ledger, cursor, limit)
        return await self.job_after(viewer, job_id, cursor, limit)

    @asynccontextmanager
    async def watched(self, viewer: Viewer, job_id: JobId, cursor: Cursor) -> AsyncGenerator[Watch]:
        """The watch that a stream follows; refuses before any byte."""
        ledger = await self.admitted(viewer, job_id, "jobs:read")
        async with self.watchers.following(viewer.workspace, job_id, cursor) as watch:
            _projected(await watch.first_look(), ledger)
            yield watch

    def may_still_read(self, viewer: Viewer, job_id: JobId) -> Callable[[], Awaitable[bool]]:
        """Asked at every ping. Trouble of the ledger is not a no: it ends no stream."""

        async def ask() -> bool:
            try:
                await self.admitted(viewer, job_id, "jobs:read")
            except Refused as refused:
                return refused.problem.status >= 500
            return True

        return ask

    async def result(self, viewer: Viewer, job_id: JobId) -> JsonValue | Published:
        """Raises Refused(JOB_NOT_ENDED), NOT_FOUND where the job ended without one, JOB_EXPIRED where it was erased."""
        ledger, look = await _both(
            self.admitted(viewer, job_id, "jobs:read"), self.sight.recorded(viewer.workspace, job_id)
        )
        answer = _projected(look, ledger)
        if not ended(look):
            raise Refused(ProblemCode.JOB_NOT_ENDED, "The job has not ended; read its status.", retry_after_s=1)
        if answer.status is not Status.SUCCEEDED:
            raise Refused(ProblemCode.NOT_FOUND, "The job ended without a result; its status says why.")
        if ledger.receipt is not None and ledger.receipt.erased_at is not None:
            raise content_erased(ledger.receipt.receipt)
        return Published(answer.artifacts[-1].url) if answer.delivery == "delivered" else answer.result

    async def jobs(self, viewer: Viewer, wanted: JobFilter, before: int | None, limit: int) -> JobList:
        """Pages over receipts, newest first, so that each job appears once whatever ends or arrives meanwhile.

        Left out are jobs whose record has passed retention and reservations that never became a job.
        """
        if (await self.reader.access(viewer)).nothing("jobs:read"):
            raise _not_permitted("jobs:read")
        at_once = asyncio.Semaphore(LIST_AT_ONCE)

        async def item(ledger: LedgerFacts) -> JobItem | None:
            assert ledger.receipt is not None
            async with at_once:
                look = await self.sight.recorded(viewer.workspace, ledger.receipt.job_id)
            answer = project(look, ledger, datetime.now(UTC))
            if isinstance(answer, Refused) or (wanted.status is not None and answer.status is not wanted.status):
                return None
            return item_of(answer)

        found: list[JobItem] = []
        scanned, more = 0, True
        while more and len(found) < limit and scanned < SCANNED_AT_MOST:
            asked = limit - len(found) if wanted.status is None else limit
            page = await self.reader.receipts(
                viewer, plugin=wanted.plugin, session=wanted.session, before=before, limit=asked
            )
            more = page.more
            for ledger, shown in zip(page.jobs, await asyncio.gather(*map(item, page.jobs)), strict=True):
                if len(found) == limit:
                    more = True
                    break
                assert ledger.receipt is not None
                before = ledger.receipt.seq
                scanned += 1
                found += [shown] if shown is not None else []
        cursor = write_place(before) if before is not None and more else None
        return JobList(data=tuple(found), next_cursor=cursor, has_more=more)

    async def health(self) -> tuple[Health, ...]:
        return await self.reader.health()

    async def admitted(self, viewer: Viewer, job_id: JobId, *actions: ReadAction) -> LedgerFacts:
        """The ledger's facts of a job of the viewer's workspace that one of `actions` opens to them."""
        if not any(action in viewer.scopes for action in actions):
            raise _not_permitted(*actions)
        if not KEY.fullmatch(job_id):
            raise not_found()
        ledger = await self.reader.ledger(viewer, job_id)
        if ledger.receipt is None:
            raise not_found()
        if not any(ledger.access.allows(action, ledger.receipt.plugin) for action in actions):
            raise _not_permitted(*actions)
        return ledger


def item_of(answer: JobAnswer) -> JobItem:
    return JobItem(**{name: getattr(answer, name) for name in JobItem.model_fields})


def _projected(look: Look, ledger: LedgerFacts) -> JobAnswer:
    answer = project(look, ledger, datetime.now(UTC))
    if isinstance(answer, Refused):
        raise answer
    return answer


def _with_events(answer: JobAnswer, look: Look, page: Page) -> JobAnswer:
    live = look.view is not None
    return answer.model_copy(
        update={
            "source": "live" if live else "recorded",
            "events": tuple(EventAnswer.of(event) for event in page.events),
            "next_cursor": write_cursor(page.cursor),
            # Without a worker nobody can say that an open job has no more events.
            "has_more": not page.complete or not (live or ended(look)),
        }
    )


def _tells_all(watch: Watch, cursor: Cursor) -> bool:
    """Whether an answer from this watch is as good as one from the engine itself."""
    look = watch.look
    if look is None or look.execution is None or watch.trouble is not None or not watch.reaches(cursor):
        return False
    # Whether the first step has begun is in no history; only a fresh `describe` tells.
    return watch.done or (look.view is not None and state_of(look).executed != "no")


def _watched(watch: Watch, ledger: LedgerFacts, cursor: Cursor, limit: int) -> JobAnswer:
    look = watch.look
    assert look is not None
    if look.execution is None:
        assert ledger.receipt is not None
        raise no_execution(ledger.receipt)
    events = watch.after(cursor, limit)
    cursor = cursor_after(events, cursor, state_of(look).resets)
    return _with_events(
        _projected(look, ledger), look, Page(tuple(events), cursor, complete=not watch.after(cursor, 1))
    )


async def _both(first: Awaitable[LedgerFacts], second: Coroutine[Any, Any, T]) -> tuple[LedgerFacts, T]:
    """Both at the same time; where both are refused, the ledger's refusal counts, so that nothing else is told. The
    engine logs a question that is cut off as a failure, with the name that the caller gave: it gets time to end."""
    other = asyncio.create_task(second)
    try:
        return await first, await other
    except Exception:
        await asyncio.wait({other}, timeout=CUT_OFF_AFTER_S)
        raise
    finally:
        other.cancel()
        await asyncio.gather(other, return_exceptions=True)


def _not_permitted(*actions: ReadAction) -> Refused:
    return Refused(ProblemCode.NOT_PERMITTED, f"This needs the scope and a grant of {' or '.join(actions)}.")
