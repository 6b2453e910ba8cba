"""How many log lines of level warning or above this process wrote within the last hour, and the event of the last one.

Of our own lines the event is a fixed text. Libraries put anything into theirs, so of them it is the logger's name. An
hour is how long a smoke's evidence is fresh: what was loud before is no word on what runs now. What libraries write in
the ordinary course of jobs is no word on the process, and not counted.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from structlog.typing import EventDict, WrappedLogger

LOUD = frozenset({"warning", "error", "critical"})
LONGEST_EVENT = 200
WITHIN_S = 3600.0
COUNTED_AT_MOST = 10_000
_STEP_FAILED = "ActivityFailure"
"""The SDK's mark on its line for a step that failed. The job tells that itself, and of a fault of ours
`activities.boundary` writes a line of its own."""
_OF_OTHERS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "temporal.core": ("Query not found when attempting to respond to it", "Activity not found on completion"),
        "uvicorn.error": ("Invalid HTTP request", "Unsupported upgrade request", "No supported WebSocket library"),
    }
)
"""Of the SDK's core: an answer to a reader, or of a step, that nobody waits for any more. Of the HTTP server: what a
stranger sent."""


@dataclass(slots=True, eq=False)
class Warnings:
    """A structlog processor, and what it has counted; lines come from any thread. `clock`: seconds, monotonic."""

    clock: Callable[[], float] = time.monotonic
    _last: str | None = None
    _times: deque[float] = field(default_factory=lambda: deque[float](maxlen=COUNTED_AT_MOST))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, _logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        if event.get("level") in LOUD and not _ordinary(event):
            library = event.get("logger")
            with self._lock:
                self._times.append(self.clock())
                self._last = (f"a line of {library}" if library else str(event["event"]))[:LONGEST_EVENT]
        return event

    def forget(self) -> None:
        """Count from here on anew."""
        with self._lock:
            self._times.clear()

    @property
    def count(self) -> int:
        with self._lock:
            while self._times and self.clock() - self._times[0] > WITHIN_S:
                self._times.popleft()
            return len(self._times)

    @property
    def last(self) -> str | None:
        return self._last if self.count else None


def _ordinary(event: EventDict) -> bool:
    if getattr(event.get("_record"), "__temporal_error_identifier", None) == _STEP_FAILED:
        return True
    return any(words in str(event["event"]) for words in _OF_OTHERS.get(str(event.get("logger")), ()))
