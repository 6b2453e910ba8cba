"""A worker that stops itself (SIGSTOP, as a frozen machine) the first time that a write reaches a point of its permit's
life: `python -m tests.recovery.stopping_worker --at POINT`. A test wakes it with SIGCONT when it likes.

Points, in order: `unconnected`, `connected` (before the permit), `asked` (the engine has said yes, the ledger was not
asked yet), `permitted` (the permit is in the ledger, no byte has left), `sent`, `answered`, `committed`.
"""

import argparse
import os
import signal
import sys
from typing import Any, Literal, get_args

from activities import worker
from gateway.calls import egress
from gateway.calls.permits import Permits
from gateway.calls.standing import Granted
from gateway.calls.writes import Writes
from gateway.ledger.engine import Ledger
from gateway.temporal import Engine

Point = Literal["unconnected", "connected", "asked", "permitted", "sent", "answered", "committed"]
POINTS: tuple[Point, ...] = get_args(Point)
STOPPING = "stopping itself"

_left = 1


def stop_here() -> None:
    """Stops every thread of this process, once."""
    global _left
    if _left:
        _left -= 1
        sys.stdout.write(f"{STOPPING}\n")
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGSTOP)


def before(owner: type, name: str) -> None:
    original = getattr(owner, name)

    async def stopping(self: Any, *args: Any, **named: Any) -> Any:
        stop_here()
        return await original(self, *args, **named)

    setattr(owner, name, stopping)


def after(owner: type, name: str, wanted: type | None = None) -> None:
    """`wanted`: only a result of this type."""
    original = getattr(owner, name)

    async def stopping(self: Any, *args: Any, **named: Any) -> Any:
        result = await original(self, *args, **named)
        if wanted is None or isinstance(result, wanted):
            stop_here()
        return result

    setattr(owner, name, stopping)


def at_the_first_word_of_the_answer() -> None:
    exchange = egress._Exchange  # pyright: ignore[reportPrivateUsage]  # the bytes are out, and only the trace tells
    original = exchange.trace

    async def trace(self: Any, name: str, info: dict[str, Any]) -> None:
        await original(self, name, info)
        if name == "http11.receive_response_headers.started" and self._before_bytes is not None:
            stop_here()

    exchange.trace = trace


def stop_at(point: Point) -> None:
    match point:
        case "unconnected":
            before(Writes, "_send")
        case "connected":
            before(Permits, "take")
        case "asked":
            after(Engine, "standing")
        case "permitted":
            after(Ledger, "write_grouped", Granted)
        case "sent":
            at_the_first_word_of_the_answer()
        case "answered":
            before(Writes, "_record")
        case "committed":
            after(Writes, "_record")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--at", choices=POINTS)
    options = parser.parse_args()
    if options.at is not None:
        stop_at(options.at)
    worker.CONCURRENT_STEPS = 1  # while it stands it must not hold polls that its successor's work would go to
    worker.main([])
