"""Server-sent events of one job: id = cursor, event = type, data = the event (api.md, .../events).

A stream holds a cursor into the watch's log and nothing else. It ends after the terminal event, when its time is up,
when the reader's authority is gone (asked at each ping), at shutdown, or when the reader takes no bytes any more.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass

import anyio
from sse_starlette import EventSourceResponse, ServerSentEvent
from sse_starlette.sse import SendTimeoutError as ReaderStalled

from facade.cursors import Cursor, cursor_at, write_cursor
from facade.views import EventAnswer
from facade.watch import Watch
from workflows.contract.events import Event

__all__ = ["ReaderStalled", "StreamRules", "stream_of"]

RETRY_MS = 2000
SEPARATOR = "\n"
DRAIN_S = 2.0
"""How long streams may take to end by themselves at shutdown."""

MayStillRead = Callable[[], Awaitable[bool]]


@dataclass(frozen=True, slots=True)
class StreamRules:
    """Units: seconds. `count` is told +1 and -1 as readers come and go."""

    longest_s: float = 300.0
    ping_s: float = 15.0
    send_timeout_s: float = 5.0
    count: Callable[[int], None] = lambda _change: None


def stream_of(watch: Watch, cursor: Cursor, may_still_read: MayStillRead, rules: StreamRules) -> EventSourceResponse:
    """The response. Whoever entered the watch leaves it when the response is over."""
    closing = anyio.Event()
    return EventSourceResponse(
        _frames(watch, cursor, may_still_read, rules, closing),
        headers={"Cache-Control": "no-cache"},
        ping=0,  # pings are frames of ours: they ask for authority
        sep=SEPARATOR,
        send_timeout=rules.send_timeout_s,
        shutdown_event=closing,
        shutdown_grace_period=DRAIN_S,
    )


async def _frames(
    watch: Watch,
    cursor: Cursor,
    may_still_read: MayStillRead,
    rules: StreamRules,
    closing: anyio.Event,
) -> AsyncGenerator[ServerSentEvent]:
    now = asyncio.get_running_loop().time
    ends_at, ping_at = now() + rules.longest_s, now() + rules.ping_s
    shutdown = asyncio.create_task(closing.wait())
    rules.count(1)
    try:
        yield ServerSentEvent(retry=RETRY_MS, comment="jobgate", sep=SEPARATOR)
        while not closing.is_set() and now() < ends_at:
            changed = watch.changed
            events = await watch.read(cursor)
            for event in events:
                cursor = cursor_at(event.seq, watch.resets)
                yield _frame(event, cursor)
            if not events and watch.over(cursor):
                return
            if now() >= ping_at:
                if not await may_still_read():
                    return
                yield ServerSentEvent(comment="ping", sep=SEPARATOR)
                ping_at = now() + rules.ping_s
            if not events:
                await asyncio.wait(
                    {changed, shutdown},
                    timeout=max(min(ping_at, ends_at) - now(), 0),
                    return_when=asyncio.FIRST_COMPLETED,
                )
    finally:
        rules.count(-1)
        shutdown.cancel()


def _frame(event: Event, cursor: Cursor) -> ServerSentEvent:
    return ServerSentEvent(
        EventAnswer.of(event).model_dump_json(), id=write_cursor(cursor), event=event.type, sep=SEPARATOR
    )
