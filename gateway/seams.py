"""Seams: the doors by which anything changes refuse while a watch is on, and each refusal is counted to one flag.

    with watching() as seen:    # for this task, what it starts, and the ledger's threads that work for it
        ...                     # the very code that otherwise would; nothing it does changes anything
    seen.flags()                # what it tried, by flag

Guarded are every verb of the engine's client that is not known to read, writes of ledger and blobs, and processes. A
process that uvloop starts can only be counted: libuv asks nobody. Without a watch a door costs one look at a variable.
"""

import os
import sys
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from types import MappingProxyType
from typing import Any, TypeVar

from sqlalchemy import Connection, event
from temporalio.client import Interceptor, OutboundInterceptor

from workflows.contract.errors import JobgateError

T = TypeVar("T")


class Flag(StrEnum):
    """What must not happen while somebody only looks (api.md, previews)."""

    WORKER_EXECUTED = "worker_executed"
    STATE_MUTATED = "state_mutated"
    PROCESS_STARTED = "process_started"
    APPROVAL_CONSUMED = "approval_consumed"
    CONFIG_CHANGED = "config_changed"
    PHASE_PROMOTED = "phase_promoted"


class WouldChange(JobgateError):
    """A verb that changes something was called under a watch. It was refused: nothing happened."""

    def __init__(self) -> None:
        super().__init__("would-change", "Something would have been changed, and was refused.")


@dataclass(frozen=True, slots=True)
class Seen:
    """How often each flag was raised under one watch."""

    counts: Counter[Flag] = field(default_factory=Counter[Flag])

    def flags(self) -> dict[Flag, bool]:
        return {flag: self.counts[flag] > 0 for flag in Flag}

    def raised(self) -> list[Flag]:
        return [flag for flag in Flag if self.counts[flag] > 0]


_SEEN: ContextVar[Seen | None] = ContextVar("seen", default=None)


@contextmanager
def watching() -> Generator[Seen]:
    """From here to its end nothing is changed by this task or by what it starts; what is tried is counted."""
    _listen_for_processes()
    seen = Seen()
    token = _SEEN.set(seen)
    try:
        yield seen
    finally:
        _SEEN.reset(token)


def watched() -> bool:
    return _SEEN.get() is not None


def refuse(flag: Flag) -> None:
    """Called by every door before it changes anything. Raises WouldChange under a watch."""
    seen = _SEEN.get()
    if seen is not None:
        seen.counts[flag] += 1
        raise WouldChange


# ---- the engine

_READS = ("count_", "describe_", "fetch_", "get_", "list_", "query_")
_STARTS = frozenset({"start_workflow", "start_update_with_start_workflow", "start_activity", "start_nexus_operation"})


class ClientSeam(Interceptor):
    """Installed first in every client: under a watch only verbs that read reach the engine."""

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:
        return _Seam(next)


class _Seam(OutboundInterceptor):
    """Its verbs are set below: all that the SDK has, so that a new one is refused until it is known to read."""


def _guarded(verb: str) -> Callable[..., Any]:
    flag = Flag.WORKER_EXECUTED if verb in _STARTS else Flag.STATE_MUTATED

    def call(self: OutboundInterceptor, input: Any) -> Any:
        refuse(flag)
        return getattr(self.next, verb)(input)

    return call


for _verb in vars(OutboundInterceptor):
    if not _verb.startswith(("_", *_READS)):
        setattr(_Seam, _verb, _guarded(_verb))


# ---- the ledger

_JOURNALS = frozenset({"audit", "changes"})
"""Rows that go with every change and never say which it was."""
_FLAGS: Mapping[str, Flag] = MappingProxyType(
    {
        **dict.fromkeys(("packets", "decisions", "votes"), Flag.APPROVAL_CONSUMED),
        **dict.fromkeys(("promotions", "evidence"), Flag.PHASE_PROMOTED),
        **dict.fromkeys(
            ("plugin_versions", "deployments", "releases", "grants", "api_keys", "workspaces"), Flag.CONFIG_CHANGED
        ),
    }
)
"""By table; a row of any other is state."""
_READING = ("SELECT", "SAVEPOINT", "RELEASE", "ROLLBACK", "PRAGMA MAIN.TABLE_INFO", "PRAGMA TEMP.TABLE_INFO")


def under_watch(fn: Callable[[Connection], T]) -> Callable[[Connection], T]:
    """`fn` for a thread of the ledger, where the caller's watch goes on: its first statement that changes a table is
    refused, and so is the transaction. Without a watch `fn` itself."""
    seen = _SEEN.get()
    if seen is None:
        return fn

    def run(conn: Connection) -> T:
        token = _SEEN.set(seen)
        statements = _Statements()
        event.listen(conn, "before_cursor_execute", statements.judge)
        try:
            result = fn(conn)
            statements.settle()
            return result
        finally:
            _SEEN.reset(token)

    return run


class _Statements:
    """The statements of one transaction under a watch. Journal rows are let through, to see what they go with; then
    `settle` refuses the whole, so that not even they stay."""

    def __init__(self) -> None:
        self._journal = False
        self._refused = False

    def judge(self, _conn: Any, _cursor: Any, statement: str, _parameters: Any, context: Any, _many: bool) -> None:
        table = _changed(statement, context)
        if table in _JOURNALS:
            self._journal = True
        elif table is not None:
            self._refused = True
            refuse(_FLAGS.get(table, Flag.STATE_MUTATED))

    def settle(self) -> None:
        if self._refused:
            raise WouldChange
        if self._journal:
            refuse(Flag.STATE_MUTATED)


def _changed(statement: str, context: Any) -> str | None:
    """The table that a statement changes; empty where only its words say that it changes something."""
    if context is not None and (context.isinsert or context.isupdate or context.isdelete):
        return context.compiled.statement.table.name
    return None if statement.lstrip().upper().startswith(_READING) else ""


# ---- processes

_PROCESS_EVENTS = frozenset(
    {"subprocess.Popen", "os.posix_spawn", "os.fork", "os.forkpty", "os.exec", "os.spawn", "os.system"}
)


@cache
def _listen_for_processes() -> None:
    """Once, and not before the first watch: neither hook can be taken away again."""
    sys.addaudithook(_on_event)
    os.register_at_fork(before=_on_fork)


def _on_event(name: str, _arguments: object) -> None:
    if name in _PROCESS_EVENTS:
        refuse(Flag.PROCESS_STARTED)


def _on_fork() -> None:
    """Too late to refuse: errors raised here are only printed. uvloop forks without an event."""
    seen = _SEEN.get()
    if seen is not None:
        seen.counts[Flag.PROCESS_STARTED] += 1
