"""The rungs of readyz: engine, ledger, blobs, workers, the signing keys where they are published elsewhere, and the
process itself while it is being stopped.

Each is asked on its own and none stands for another: that a worker lives says nothing of the tools, and that the
engine answers says nothing of workers. What can not be seen is not known, which is not yes.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from datetime import UTC, datetime
from typing import Any, TypeVar

from sqlalchemy import Connection, text

from facade.reader import Health
from gateway.ages import age
from gateway.doors import Doors
from gateway.ledger.presence import recent_processes
from gateway.versioning import takers
from gateway.workers import LOOKED_BACK, Queue, asked, last_word, workers_of
from workflows.contract.errors import JobgateError

T = TypeVar("T")

RUNG_S = 2.0
"""How long one rung may take to answer."""


def one_at_a_time(look: Callable[[], Coroutine[Any, Any, T]]) -> Callable[[], Awaitable[T]]:
    """However many ask at once, one looks and all are told: readyz asks nobody who they are."""
    looking: asyncio.Task[T] | None = None

    async def ask() -> T:
        nonlocal looking
        if looking is None or looking.done():
            looking = asyncio.create_task(look())
        return await asyncio.shield(looking)

    return ask


async def health(doors: Doors) -> tuple[Health, ...]:
    """In this order: after SIGTERM process, engine, ledger, blobs, workers, and with JOBGATE_JWKS_URL signing_keys."""
    found = await asyncio.gather(
        _rung("engine", doors.engine.reachable(), "answers for this namespace"),
        _ledger(doors),
        _rung("blobs", doors.blobs.reachable(), "answers"),
        _workers(doors),
    )
    process = (Health("process", False, "is being stopped: takes nothing new"),) if doors.places.closing else ()
    return (*process, *found, *_signing_keys(doors))


async def _ledger(doors: Doors) -> Health:
    """That it takes writes is seen from this process's own presence, so that looking writes nothing."""
    answers = await _rung("ledger", doors.ledger.read(_probe), "answers, schema present, takes writes")
    if answers.ok and not doors.presence.heard:
        return Health("ledger", False, "answers, but takes no writes: it is locked, full or read-only")
    return answers


async def _workers(doors: Doors) -> Health:
    """Yes only of a worker that is alive and asked for the work that jobs start with."""
    now = datetime.now(UTC)
    try:
        async with asyncio.timeout(RUNG_S):
            rows = await doors.ledger.read(lambda conn: recent_processes(conn, now - LOOKED_BACK))
    except (JobgateError, TimeoutError):
        return Health("workers", None, "not known: the ledger does not answer")
    live = workers_of(rows, now)
    if not live:
        return Health("workers", False, f"no worker lives ({last_word(rows, now)}); accepted jobs wait")
    lane = doors.settings.lane
    queue = Queue(lane, doors.settings.lanes[lane].task_queue, "workflow")
    may_take = await takers(doors.engine.histories, doors.settings, rows)
    if not workers_of(may_take, now):
        said = f"{len(live)} live, but none of the build that new jobs go to (jobgate worker --set-current); they wait"
        return Health("workers", False, said)
    answers = await asked(doors.engine.histories, (queue,), may_take, now)
    if answers is None:
        return Health("workers", None, f"not known: the engine does not answer ({len(live)} live)")
    at = answers[queue]
    if at is None:
        said = f"{len(live)} live, but none asked for work of the lane that jobs start on; accepted jobs wait"
        return Health("workers", False, said)
    said = f"a live worker asked for work {age(now - at)} ago; whether a slot is free or a tool works is not said by it"
    return Health("workers", True, said)


def _signing_keys(doors: Doors) -> tuple[Health, ...]:
    fetched = doors.verifier.keys_fetched
    if fetched is None:
        return ()
    if fetched:
        return (Health("signing_keys", True, "fetched from where they are published"),)
    return (
        Health("signing_keys", False, "not fetched yet: signed tokens are answered 503, API keys are not affected"),
    )


def _probe(conn: Connection) -> None:
    conn.execute(text("SELECT seq FROM receipts LIMIT 1")).first()


async def _rung(name: str, answer: Awaitable[object], good: str) -> Health:
    try:
        async with asyncio.timeout(RUNG_S):
            await answer
    except (JobgateError, TimeoutError):
        return Health(name, False, "does not answer")
    return Health(name, True, good)
