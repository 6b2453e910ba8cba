"""Where log lines go, so that a full disk stops nothing but the log.

A line that can not be written is lost, and whoever wrote it goes on: a request, a sweep and a step are worth more than
a line about them. The first line that can be written again says how many were lost.
"""

import threading
from dataclasses import dataclass, field
from io import TextIOBase
from typing import TextIO


@dataclass(eq=False)
class LogStream(TextIOBase):
    """A text stream over `out`, whose lines come from any thread."""

    out: TextIO
    lost: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def write(self, text: str) -> int:
        with self._lock:
            try:
                if self.lost:
                    self.out.write(f'{{"event": "log lines were lost", "level": "warning", "lines": {self.lost}}}\n')
                self.out.write(text)
                self.out.flush()
            except (OSError, ValueError):  # no room, a reader that is gone, or closed at the very end
                self.lost += text.count("\n")
            else:
                self.lost = 0
        return len(text)

    def flush(self) -> None:
        """Every line is flushed as it is written."""
