"""How many log lines of level warning or above this process wrote, and the event of the last one.

Of our own lines the event is a fixed text. Libraries put anything into theirs, so of them it is the logger's name.
"""

import threading
from dataclasses import dataclass, field

from structlog.typing import EventDict, WrappedLogger

LOUD = frozenset({"warning", "error", "critical"})
LONGEST_EVENT = 200


@dataclass(slots=True, eq=False)
class Warnings:
    """A structlog processor, and what it has counted; lines come from any thread."""

    count: int = 0
    last: str | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, _logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        if event.get("level") in LOUD:
            library = event.get("logger")
            with self._lock:
                self.count += 1
                self.last = (f"a line of {library}" if library else str(event["event"]))[:LONGEST_EVENT]
        return event
