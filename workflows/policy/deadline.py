"""One absolute deadline per job: how it is read, what it may be, and how much of it is left.

A deadline is RFC 3339 with an offset and at most six fraction digits. Dates without a time or an offset, leap
seconds and numbers are refused, never guessed.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal

EXECUTION_GRACE = timedelta(seconds=10)
"""The engine ends an execution this long after the deadline: only it can, when there is no worker."""

_RFC3339 = re.compile(r"\d{4}-\d{2}-\d{2}[Tt]\d{2}:\d{2}:\d{2}(\.\d{1,6})?([Zz]|[+-]\d{2}:\d{2})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Denied:
    """Why there is no deadline: `invalid` (past, malformed, both given) or `limit` (later than the limits allow)."""

    kind: Literal["invalid", "limit"]
    reason: str


def parse_instant(text: str) -> datetime | None:
    """The instant in UTC, or None where the text is not RFC 3339 with an offset."""
    if not _RFC3339.fullmatch(text):
        return None
    try:
        return datetime.fromisoformat(text.upper()).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def resolve(
    deadline: datetime | None, timeout_seconds: int | None, now: datetime, max_duration_seconds: int
) -> datetime | Denied:
    """The job's deadline in UTC. Neither given: the longest that the limits allow. Units: seconds."""
    if deadline is not None and timeout_seconds is not None:
        return Denied("invalid", "Give deadline or timeout_seconds, not both.")
    longest = now + timedelta(seconds=max_duration_seconds)
    if timeout_seconds is not None:
        if timeout_seconds <= 0:
            return Denied("invalid", "timeout_seconds must be at least 1.")
        if timeout_seconds > max_duration_seconds:
            return Denied("limit", f"The job may take at most {max_duration_seconds} seconds.")
        return now + timedelta(seconds=timeout_seconds)
    if deadline is None:
        return longest
    if deadline <= now:
        return Denied("invalid", "The deadline is in the past.")
    if deadline > longest:
        return Denied("limit", f"The deadline may be at most {max_duration_seconds} seconds ahead.")
    return deadline


def remaining(deadline: datetime, now: datetime) -> timedelta:
    """What is left, never negative."""
    return max(deadline - now, timedelta(0))
