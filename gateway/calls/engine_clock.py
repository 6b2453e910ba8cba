"""What time it is for the engine, as a worker knows it from the attempts that it was given.

Deadlines are timers of the engine, so a worker goes by the engine's clock. Each attempt says when it began there, and
what has passed since is told by a clock that nobody sets. An attempt that came late makes that guess too early, never
too late: of the last ones the latest guess counts. Where this machine's own clock says the same, that one is read.
"""

import time
from collections import deque
from datetime import UTC, datetime, timedelta

AGREE = timedelta(seconds=1)
REMEMBERED = 32


class EngineClock:
    """One per worker process; read from any thread. Before the first attempt it knows this machine's clock alone."""

    def __init__(self) -> None:
        self._heard: deque[float] = deque(maxlen=REMEMBERED)
        self._ahead: float | None = None
        """By how many seconds the engine's time is ahead of our clock without a date."""

    def heard(self, began: datetime) -> None:
        """An attempt that began at the engine then has just arrived."""
        self._heard.append(began.timestamp() - time.monotonic())
        self._ahead = max(self._heard)

    def now(self) -> datetime:
        own, engines = datetime.now(UTC), self._engines()
        return own if abs(own - engines) <= AGREE else engines

    @property
    def differs(self) -> bool:
        """This machine's clock is wrong, or everything came late: then only the engine itself knows."""
        return abs(datetime.now(UTC) - self._engines()) > AGREE

    def _engines(self) -> datetime:
        if self._ahead is None:
            return datetime.now(UTC)
        return datetime.fromtimestamp(time.monotonic() + self._ahead, UTC)
