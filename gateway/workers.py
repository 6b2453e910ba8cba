"""Which workers live and ask for work: their presence in the ledger held against what the engine remembers of pollers.

Neither is enough. The engine remembers a dead worker for minutes, and a process that lives may not have asked. What
can not be seen is not known, which is never yes; and nothing here says that a slot is free or a job gets anywhere.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from temporalio.api.taskqueue.v1 import PollerInfo

from gateway.ages import age
from gateway.histories import Histories, QueueKind, unless_silent
from gateway.ledger.presence import ProcessRow

POLLED_WITHIN = timedelta(seconds=70)
"""A poll lasts a minute where there is nothing to do, and is then asked anew."""
LOOKED_BACK = timedelta(hours=1)
"""How far back dead processes are looked for, to say of them when they were seen last."""


@dataclass(frozen=True, slots=True)
class Queue:
    """What a job needs somebody to ask for: work of a kind from a lane's task queue."""

    lane: str
    task_queue: str
    kind: QueueKind


async def asked(
    histories: Histories, queues: Sequence[Queue], rows: Iterable[ProcessRow], now: datetime
) -> Mapping[Queue, datetime | None] | None:
    """Of each queue, when a live worker asked it last (None: nobody lately); None: the engine is silent."""
    live = workers_of(rows, now)

    async def one(queue: Queue) -> datetime | None:
        return last_asked(await histories.polling(queue.task_queue, queue.kind), live, now)

    found = await unless_silent(asyncio.gather(*map(one, queues)))
    return None if found is None else dict(zip(queues, found, strict=True))


def last_asked(pollers: Iterable[PollerInfo], live: Iterable[ProcessRow], now: datetime) -> datetime | None:
    """A record from before its process started is another one's: a container's only process is often number 1."""
    since = {row.identity: row.started_at for row in sorted(live, key=lambda row: row.started_at)}
    seen = [(poller.identity, poller.last_access_time.ToDatetime(tzinfo=UTC)) for poller in pollers]
    return max(
        (at for who, at in seen if who in since and at >= since[who] and now - at <= POLLED_WITHIN), default=None
    )


def workers_of(rows: Iterable[ProcessRow], now: datetime) -> list[ProcessRow]:
    """The live ones."""
    return [row for row in rows if row.kind == "worker" and row.lives(now)]


def last_word(rows: Iterable[ProcessRow], now: datetime) -> str:
    """How the worker went that was seen last, without its name."""
    gone = max((row for row in rows if row.kind == "worker"), key=lambda row: row.seen_at, default=None)
    if gone is None:
        return f"none was seen within {age(LOOKED_BACK)}"
    if gone.stopped_at is not None:
        return f"the last one stopped {age(now - gone.stopped_at)} ago"
    return f"the last one was heard of {age(now - gone.seen_at)} ago"
