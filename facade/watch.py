"""One upstream watcher per job and process, however many readers follow it.

A history long poll wakes a `view` query, at most five a second; what it brings goes into one log in memory, of which
each reader holds a cursor. It holds the newest part; who stands further back reads pages of their own. Beyond `limit`
long polls, jobs are looked at every `SLOW_POLL_S` instead. With no worker the record is shown, and asked again later.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import structlog

from facade.cursors import Cursor, cursor_at, invalid_cursor
from facade.log import last_seq
from facade.project import Look, ended, state_of
from facade.sight import Sight
from workflows.contract.errors import ProblemCode, Refused
from workflows.contract.events import Event
from workflows.contract.ids import JobId, Workspace
from workflows.contract.job import Reset

NOT_BEFORE_S = (0.0, 0.0, 0.0, 0.5, 0.75, 1.0)
"""After n queries within a second, the next comes so long after the first of them: three at once, five a second."""
SLOW_POLL_S = 2.0
TROUBLE_PAUSE_S = 1.0
PAGE, KEPT = 500, 5_000
"""Events of one look, and of the log in memory (1.4 kB each, measured)."""

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class Watch:
    """One job's log as far as it is known here. `changed` is a future that the next news fulfils."""

    def __init__(self, sight: Sight, workspace: Workspace, job_id: JobId, start: Cursor, *, long_poll: bool) -> None:
        self._sight = sight
        self._workspace, self._job_id = workspace, job_id
        self._long_poll = long_poll
        self._wake = asyncio.Event()
        self._asked: deque[float] = deque(maxlen=len(NOT_BEFORE_S) - 1)
        self._reaching_back = asyncio.Lock()
        self._start = Cursor(0) if start.seq is None else start
        self._before = start.seq or 0
        self._events: list[Event] = []
        self.resets: tuple[Reset, ...] = ()
        """The operator's resets that made the log."""
        self._described = False
        """Whether the description at hand may be used again: workers tell of a run that was ended as if it went on."""
        self.look: Look | None = None
        self.trouble: Refused | None = None
        self.done = False
        """The job has ended and every event of it is in the log; or there is no such execution."""
        self.settled = False
        self.readers = 0
        self.changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run())

    # ---- what readers see

    def after(self, cursor: Cursor, limit: int = PAGE) -> list[Event]:
        """Known events after the cursor; none where the log does not reach back to it (see `read`)."""
        place = cursor.place_in(self.resets)
        if place is None or place < self._before:
            return []
        start = place - self._before
        return self._events[start : start + limit]

    def over(self, cursor: Cursor) -> bool:
        """Whether nothing can follow this cursor any more."""
        return self.done and not self.after(cursor, 1)

    async def first_look(self) -> Look:
        """The first look, or the trouble that prevented it."""
        while self.look is None:
            if self.trouble is not None:
                raise self.trouble
            await asyncio.shield(self.changed)
        return self.look

    async def cover(self, cursor: Cursor) -> None:
        """Reaches back to a cursor that is not too far. Raises Refused(CURSOR_INVALID) beyond an ended job's end."""
        look = await self.first_look()
        if look.execution is None or (self.reaches(cursor) and not ended(look)):
            return
        derived = ended(look) and state_of(look).last_event.seq is None
        place = cursor.place_in(self.resets)
        if place is None:
            if not derived:
                raise invalid_cursor()
            return
        if ended(look) and not derived and place > last_seq(look):
            raise invalid_cursor()
        if self._before - place > KEPT - len(self._events):
            return
        async with self._reaching_back:
            earlier: list[Event] = []
            while place + len(earlier) < self._before:
                at = place + len(earlier)
                if not (found := await self.read(cursor_at(at, self.resets))):
                    return
                earlier += found[: self._before - at]
            self._events[:0] = earlier
            self._before -= len(earlier)

    async def read(self, cursor: Cursor) -> list[Event]:
        """Events after the cursor, also before the log in memory; none where only a worker knows them."""
        look = await self.first_look()
        if self.reaches(cursor):
            return self.after(cursor)
        _, page = await self._sight.page(self._workspace, self._job_id, cursor, PAGE, look.execution)
        return [event for event in page.events if event.seq is not None] if page is not None else []

    def reaches(self, cursor: Cursor) -> bool:
        """Whether the log begins at or before the cursor."""
        place = cursor.place_in(self.resets)
        return place is None or place >= self._before

    def tell(self, look: Look) -> None:
        """Somebody else looked: whoever saw more than this watch makes it look again."""
        if look.execution is None or self.look is None or self.done:
            return
        if ended(look) or last_seq(look) > self._last:
            self._described = False
            self.poke()

    def poke(self) -> None:
        self.settled = False
        self._wake.set()

    async def settle(self, timeout_s: float) -> bool:
        """Waits until the log is up to date with everything that this process was told of."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not (self.settled or self.done):
                    await asyncio.shield(self.changed)
        return self.settled or self.done

    def close(self) -> asyncio.Task[None]:
        self._task.cancel()
        return self._task

    # ---- upstream

    async def _run(self) -> None:
        listening = asyncio.create_task(self._listen()) if self._long_poll else None
        try:
            while not self.done:
                pause = await self._look_again()
                if listening is not None and listening.done() and self._goes_on():
                    listening = asyncio.create_task(self._listen())  # an operator's reset made another run
                if listening is None or listening.done():
                    pause = min(pause or SLOW_POLL_S, SLOW_POLL_S)
                if not self.done:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(pause):
                            await self._wake.wait()
        except Exception:
            log.error("a watch failed", exc_info=True)
            self.trouble, self.done = Refused(ProblemCode.INTERNAL, "Watching this job failed."), True
            self.publish()
        finally:
            if listening is not None:
                listening.cancel()
                await asyncio.gather(listening, return_exceptions=True)

    def _goes_on(self) -> bool:
        return self.look is not None and self.look.execution is not None and not ended(self.look)

    async def _look_again(self) -> float | None:
        """Seconds until the next look is due without news, or None."""
        self._wake.clear()
        try:
            pause = await self._refresh()
            self.trouble = None
        except Refused as refused:
            self.trouble, pause = refused, TROUBLE_PAUSE_S
        self.settled = not self._wake.is_set() and self.trouble is None
        self.publish()
        return pause

    async def _listen(self) -> None:
        """Turns the history's growth into wake-ups until the execution closes; trouble is tried again."""
        while True:
            try:
                async for _ in self._sight.reader.changes(self._workspace, self._job_id):
                    self.poke()
                self._described = False
                self.poke()
                return
            except Refused:
                self.poke()
                await asyncio.sleep(TROUBLE_PAUSE_S)

    async def _refresh(self) -> float | None:
        """One look; seconds until the next one is due without news, or None."""
        await self._pace()
        known = self.look.execution if self.look is not None and self.look.view is not None else None
        known, self._described = known if self._described else None, True
        here = cursor_at(self._last, self.resets) if self.look is not None else self._start
        look, page = await self._sight.page(self._workspace, self._job_id, here, PAGE, known)
        if known is not None and look.execution is known and look.view is None:
            look, page = await self._sight.page(self._workspace, self._job_id, here, PAGE)
        if page is None:
            self.look, self.done = look, True
            return None
        self._go_back(here, state_of(look).resets)
        if self.look is None:
            self._before = min(self._before, last_seq(look))
        if self.look is None and last_seq(look) - self._before > KEPT:
            self._before = last_seq(look) - PAGE
        else:
            self._events += page.events
        self._before += max(len(self._events) - KEPT, 0)
        self._events = self._events[-KEPT:]
        self.look = look
        if ended(look):
            self.done = page.complete
            return None if self.done else self._retry()
        if look.view is None:
            return self._retry()
        if not page.complete:
            self._wake.set()
        return None

    def _go_back(self, here: Cursor, resets: tuple[Reset, ...]) -> None:
        """Forgets what an operator's reset took back; the page after `here` goes on from there."""
        place = here.place_in(resets)
        if place is not None and place < self._last:
            self._before = min(self._before, place)
            del self._events[place - self._before :]
        self.resets = resets

    def _retry(self) -> float:
        return max(self._sight.breaker.pause((self._workspace, self._job_id)), 0.2)

    @property
    def _last(self) -> int:
        """The seq up to which the log reaches without a gap."""
        return self._before + len(self._events)

    async def _pace(self) -> None:
        now = asyncio.get_running_loop().time
        while self._asked and self._asked[0] <= now() - 1.0:
            self._asked.popleft()
        if self._asked:
            await asyncio.sleep(max(self._asked[0] + NOT_BEFORE_S[len(self._asked)] - now(), 0))
        self._asked.append(now())

    def publish(self) -> None:
        """Wakes every reader."""
        self.changed.set_result(None)
        self.changed = asyncio.get_running_loop().create_future()


class Watchers:
    """The watches of this process. `count` is told +1 and -1 as they come and go."""

    def __init__(self, sight: Sight, *, limit: int = 200, count: Callable[[int], None] = lambda _change: None) -> None:
        self.sight = sight
        self._limit = limit
        self._count = count
        self._watches: dict[tuple[Workspace, JobId], Watch] = {}
        self.draining = False
        """The process is about to end: whoever waits for news gets what there is."""

    def drain(self) -> None:
        self.draining = True
        for watch in self._watches.values():
            watch.publish()

    def present(self, workspace: Workspace, job_id: JobId) -> Watch | None:
        return self._watches.get((workspace, job_id))

    @asynccontextmanager
    async def following(self, workspace: Workspace, job_id: JobId, cursor: Cursor) -> AsyncGenerator[Watch]:
        """The job's watch, reaching back to `cursor`; it ends when its last reader leaves."""
        key = (workspace, job_id)
        watch = self._watches.get(key)
        if watch is None:
            crowded = len(self._watches) >= self._limit
            watch = Watch(self.sight, workspace, job_id, cursor, long_poll=not crowded)
            self._watches[key] = watch
            self._count(1)
        watch.readers += 1
        try:
            await watch.cover(cursor)
            yield watch
        finally:
            watch.readers -= 1
            if not watch.readers and self._watches.get(key) is watch:
                del self._watches[key]
                self._count(-1)
                watch.close()

    async def close(self) -> None:
        """Ends every watch; readers that are still there see nothing more."""
        await asyncio.gather(*(watch.close() for watch in self._watches.values()), return_exceptions=True)
