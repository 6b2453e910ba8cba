"""What of a text gets into a log line: scrubbed of the secrets of the call in whose course it was said, and cut.

Other people's code logs what it likes. Whoever calls such code names the scrubber; it counts in the thread or task that
`scrubbed` surrounds and in the tasks that are started there, and nowhere else.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar

from structlog.typing import EventDict, WrappedLogger

LONGEST_TEXT = 4000
_scrub: ContextVar[Callable[[str], str] | None] = ContextVar("scrub", default=None)


@contextmanager
def scrubbed(scrub: Callable[[str], str]) -> Generator[None]:
    """Every text that is logged inside goes through `scrub`."""
    before = _scrub.set(scrub)
    try:
        yield
    finally:
        _scrub.reset(before)


def fit_texts(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Scrubbed first: half of a secret is not found."""
    scrub = _scrub.get()
    for key, value in event.items():
        if isinstance(value, str):
            text = value if scrub is None else scrub(value)
            event[key] = text if len(text) <= LONGEST_TEXT else text[:LONGEST_TEXT] + "..."
    return event
