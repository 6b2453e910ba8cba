"""The request clock: a time-out around every answer, which a route may move once it knows how long it may take."""

import asyncio
from collections.abc import MutableMapping
from typing import Any

CLOCK = "jobgate.clock"
"""The key in an ASGI scope under which the clock of this request is."""
ARRIVED = "jobgate.arrived"
"""The same, for when it arrived, in event loop time: what it waits for counts, whatever that is."""


def move_clock(scope: MutableMapping[str, Any], seconds: float | None) -> None:
    """The answer must begin within `seconds` from now; None: this route keeps a clock of its own (or is a stream)."""
    clock: asyncio.Timeout | None = scope.get(CLOCK)
    if clock is not None and not clock.expired():
        clock.reschedule(None if seconds is None else asyncio.get_running_loop().time() + seconds)


def time_left(scope: MutableMapping[str, Any]) -> float:
    """Seconds until this request's clock runs out; infinite where there is none."""
    clock: asyncio.Timeout | None = scope.get(CLOCK)
    when = clock.when() if clock is not None else None
    return float("inf") if when is None else when - asyncio.get_running_loop().time()
