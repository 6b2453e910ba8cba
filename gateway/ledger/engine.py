"""The ledger: transactions as plain functions `fn(conn) -> result`, run in threads beside the event loop.

    await ledger.read(fn)                   one consistent snapshot; writing in it is an error
    await ledger.write(fn)                  one transaction; on SQLite all writes pass one thread
    await ledger.write_grouped(fn, key=..)  many callers, one commit: the hot path

Trouble of the database is always `Refused(LEDGER_UNAVAILABLE)`. A caller that is cancelled or out of time is answered
at once although its thread may be busy: a transaction not yet begun is then dropped, one under way may still commit,
so whoever gave up must look. Threads and lines of waiters are bounded; past the bound the answer is a refusal at once.
A transaction function may be run more than once (a deadlock, a companion's error): it touches `conn` and nothing else.
Under a watch (`gateway.seams`) a transaction that would change anything is refused.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar, cast

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import StatementError

from gateway.ledger.database import Engines, is_trouble, may_run_again, open_engines
from gateway.seams import under_watch, watched
from workflows.contract.errors import ProblemCode, Refused

T = TypeVar("T")

WAITING_LIMIT = 1_024
_GROUP_LIMIT = 256
_ATTEMPTS = 3
_CLOSE_S = 6.0


@dataclass(slots=True, eq=False)
class _Member:
    """One caller's part of a group commit, and what came of it."""

    fn: Callable[[Connection], Any]
    key: str
    future: asyncio.Future[Any]
    result: Any = None
    error: Exception | None = None

    def settle(self) -> None:
        if self.future.done():
            return
        if self.error is None:
            self.future.set_result(self.result)
        else:
            self.future.set_exception(self.error)


@dataclass(slots=True)
class _Lane:
    """A bounded set of threads with a bounded line of waiters before it; used from one event loop."""

    threads: ThreadPoolExecutor
    limit: int
    waiting: int = 0

    async def run(self, call: Callable[..., T], *args: Any) -> T:
        if self.waiting >= self.limit:
            raise _unavailable()
        self.waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self.threads, call, *args)
        finally:
            self.waiting -= 1


@dataclass(slots=True, eq=False)
class Ledger:
    """One per process and event loop; see the module. `close()` it."""

    _engines: Engines
    _reads: _Lane
    _writes: _Lane
    _group: deque[_Member] = field(default_factory=deque[_Member])
    _idle: asyncio.Event = field(default_factory=asyncio.Event)
    _closed: bool = False

    @classmethod
    def open(cls, url: str, *, waiting_limit: int = WAITING_LIMIT) -> Self:
        """Connects on first use. `url` is `sqlite:///PATH` or `postgresql+psycopg://..`; else ValueError."""
        engines = open_engines(url)
        ledger = cls(
            engines,
            _Lane(ThreadPoolExecutor(engines.readers, "ledger-read"), waiting_limit),
            _Lane(ThreadPoolExecutor(engines.writers, "ledger-write"), waiting_limit),
        )
        ledger._idle.set()
        return ledger

    async def read(self, fn: Callable[[Connection], T]) -> T:
        self._refuse_if_closed()
        return await self._reads.run(_transact, self._engines.reader, under_watch(fn))

    async def write(self, fn: Callable[[Connection], T]) -> T:
        self._refuse_if_closed()
        return await self._writes.run(_transact, self._engines.writer, under_watch(fn))

    async def write_grouped(self, fn: Callable[[Connection], T], *, key: str) -> T:
        """`fn` shares a transaction with whatever else is waiting, and has its own result or error.

        `key` names the row that `fn` writes: a group runs in the order of its keys, so that two processes never wait
        for each other's rows in a ring.
        """
        if watched():  # what is refused has no companions
            return await self.write(fn)
        self._refuse_if_closed()
        if len(self._group) >= self._writes.limit:
            raise _unavailable()
        loop = asyncio.get_running_loop()
        member = _Member(fn, key, loop.create_future())
        self._group.append(member)
        if self._idle.is_set():
            self._idle.clear()
            self._writes.threads.submit(self._commit_group, loop)
        return cast(T, await member.future)

    async def close(self) -> None:
        """Lets what is under way finish, within bounds, then ends the threads and the connections."""
        if self._closed:
            return
        self._closed = True
        in_time = False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                await self._idle.wait()
                await self._reads.run(self._engines.reader.dispose)
                await self._writes.run(self._engines.writer.dispose)
                in_time = True
        while self._group:
            member = self._group.popleft()
            member.error = _unavailable()
            member.settle()
        self._reads.threads.shutdown(wait=in_time)
        self._writes.threads.shutdown(wait=in_time)

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise _unavailable()

    def _commit_group(self, loop: asyncio.AbstractEventLoop) -> None:
        """In the writer's thread: takes whoever waits by now, commits them together, and wakes the loop once."""
        members: list[_Member] = []
        while self._group and len(members) < _GROUP_LIMIT:
            member = self._group.popleft()
            if not member.future.cancelled():
                members.append(member)
        try:
            _commit_together(self._engines.writer, sorted(members, key=lambda member: member.key))
        finally:
            # A loop that was closed meanwhile has nobody left to tell.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._settle_group, loop, members)

    def _settle_group(self, loop: asyncio.AbstractEventLoop, members: list[_Member]) -> None:
        for member in members:
            member.settle()
        if self._group:
            self._writes.threads.submit(self._commit_group, loop)
        else:
            self._idle.set()


def _commit_together(engine: Engine, members: list[_Member]) -> None:
    if not members:
        return

    def run_all(conn: Connection) -> None:
        for member in members:
            member.result = member.fn(conn)

    def run_each(conn: Connection) -> None:
        for member in members:
            member.result, member.error = None, None
            try:
                with conn.begin_nested():
                    member.result = member.fn(conn)
            except Exception as error:
                if may_run_again(error):  # nobody's: it comes of what else is locked, and ends with the transaction
                    raise
                member.error = _unavailable(error) if is_trouble(error) else error

    try:
        _transact(engine, run_all)
    except Exception as error:  # noqa: BLE001 - handed to the members
        if len(members) == 1:
            members[0].error = error
        elif _is_unavailable(error):
            _fail_all(members, error)
        else:
            # One of them failed: find out which, and commit the others.
            try:
                _transact(engine, run_each)
            except Exception as cause:  # noqa: BLE001 - handed to the members
                _fail_all(members, cause)


def _fail_all(members: list[_Member], cause: Exception) -> None:
    for member in members:
        member.error = _unavailable(cause)


def _transact(engine: Engine, fn: Callable[[Connection], T]) -> T:
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            with engine.begin() as conn:
                return fn(conn)
        except Exception as error:
            if attempt < _ATTEMPTS and may_run_again(error):
                continue
            if is_trouble(error):
                raise _unavailable() from error
            if isinstance(error, StatementError) and isinstance(error.orig, Refused):
                # A column refused its value (`column_types`), and the statement was never sent.
                raise error.orig from None
            raise
    raise AssertionError("unreachable")


def _unavailable(cause: BaseException | None = None) -> Refused:
    refusal = Refused(ProblemCode.LEDGER_UNAVAILABLE, "The ledger does not answer now.", retry_after_s=1)
    refusal.__cause__ = cause
    return refusal


def _is_unavailable(error: Exception) -> bool:
    return isinstance(error, Refused) and error.code == ProblemCode.LEDGER_UNAVAILABLE
