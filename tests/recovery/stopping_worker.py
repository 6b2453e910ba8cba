"""A worker that stops itself (SIGSTOP, as a frozen machine) when a write reaches a point of its permit's life.

Run: `python -m tests.recovery.stopping_worker --orders FILE`. A test writes a point into the file; of the workers that
share it the one that reaches the point takes the order, says so, and stands until the test sends SIGCONT.
Points, in order: `unconnected`, `connected` (before the permit), `asked` (the engine has said yes, the ledger was not
asked yet), `permitted` (the permit is in the ledger, no byte has left), `sent`, `answered`, `committed`.
"""

import argparse
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
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
STOPPING, AWAKE = "stopping itself at", "awake again at"


@dataclass(frozen=True)
class Orders:
    file: Path

    def reach(self, point: Point) -> None:
        """Stops every thread of this process where this point is ordered; an order is for one process."""
        try:
            if self.file.read_text() != point:
                return
            self.file.unlink()
        except FileNotFoundError:
            return
        _say(f"{STOPPING} {point}")
        os.kill(os.getpid(), signal.SIGSTOP)
        _say(f"{AWAKE} {point}")

    def before(self, owner: type, name: str, point: Point) -> None:
        original = getattr(owner, name)

        async def stopping(of: Any, *args: Any, **named: Any) -> Any:
            self.reach(point)
            return await original(of, *args, **named)

        setattr(owner, name, stopping)

    def after(self, owner: type, name: str, point: Point, wanted: type | None = None) -> None:
        """`wanted`: only a result of this type."""
        original = getattr(owner, name)

        async def stopping(of: Any, *args: Any, **named: Any) -> Any:
            result = await original(of, *args, **named)
            if wanted is None or isinstance(result, wanted):
                self.reach(point)
            return result

        setattr(owner, name, stopping)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def watch(orders: Orders) -> None:
    orders.before(Writes, "_send", "unconnected")
    orders.before(Permits, "take", "connected")
    orders.after(Engine, "standing", "asked")
    orders.after(Ledger, "write_grouped", "permitted", Granted)
    orders.before(Writes, "_record", "answered")
    orders.after(Writes, "_record", "committed")

    exchange = egress._Exchange  # pyright: ignore[reportPrivateUsage]  # the bytes are out, and only the trace tells
    original = exchange.trace

    async def trace(self: Any, name: str, info: dict[str, Any]) -> None:
        await original(self, name, info)
        if name == "http11.receive_response_headers.started" and self._before_bytes is not None:
            orders.reach("sent")

    exchange.trace = trace


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--orders", type=Path, required=True)
    watch(Orders(parser.parse_args().orders))
    worker.CONCURRENT_STEPS = 1  # while it stands it must not hold polls that its successor's work would go to
    worker.main([])
