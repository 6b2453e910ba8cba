"""Cursors: opaque text for clients, and the one place that reads and writes it.

In a job's log a cursor is the seq of the last event seen, or `end` after the derived end of a job that the engine
ended. After an operator's reset it also names the log: a reader of another course of events goes on where the two part,
with the word of the reset. In a list it is the row's number in disguise, so that nobody computes with it.
"""

import base64
import binascii
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from workflows.contract.errors import ProblemCode, Refused
from workflows.contract.events import Event
from workflows.contract.job import Reset

END = "end"
_CURSOR = re.compile(r"(end|0|[1-9][0-9]{0,9})(?:[.]([1-9][0-9]{0,9})-([0-9a-f]{8}))?", re.ASCII)
_PLACE = re.compile(r"([a-z]+):([1-9][0-9]{0,17})", re.ASCII)
List = Literal["jobs", "audit", "messages"]
"""Which list a cursor was given out for; another one's is refused."""

Place = int | None
"""The seq after which to go on in a job's log as it is now; None: after the derived end."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where a reader stands: after `seq` (None: after the derived end) of the log that an operator's reset began with
    the event `first` (0: that no reset began)."""

    seq: int | None
    first: int = 0
    tag: str = ""

    def place_in(self, resets: Sequence[Reset]) -> Place:
        """The place in the log that these resets made: where it parts from the reader's, if that was read further."""
        tags = [reset.tag for reset in resets]
        mine = self.tag == "" or self.tag in tags
        parts = [reset.first for reset in resets[tags.index(self.tag) + 1 if self.tag in tags else 0 :]][:1]
        bound = min(parts if mine else [*parts, self.first], default=None)
        if bound is None:
            return self.seq
        return bound - 1 if self.seq is None else min(self.seq, bound - 1)


START = Cursor(0)


def cursor_at(place: Place, resets: Sequence[Reset]) -> Cursor:
    """The cursor of a reader who stands at this place of the log that these resets made."""
    before = [reset for reset in resets if place is None or reset.first <= place]
    return Cursor(place, before[-1].first, before[-1].tag) if before else Cursor(place)


def read_cursor(text: str) -> Cursor:
    found = _CURSOR.fullmatch(text)
    if not found:
        raise invalid_cursor()
    seq, first, tag = found.groups()
    return Cursor(None if seq == END else int(seq), int(first or 0), tag or "")


def write_cursor(cursor: Cursor) -> str:
    seq = END if cursor.seq is None else str(cursor.seq)
    return f"{seq}.{cursor.first}-{cursor.tag}" if cursor.tag else seq


def cursor_after(events: Sequence[Event], cursor: Cursor, resets: Sequence[Reset]) -> Cursor:
    """Where a reader stands who saw these events after `cursor`."""
    return cursor_at(events[-1].seq, resets) if events else cursor


def read_place(text: str, of: List = "jobs") -> int:
    """The number of the row from which a list goes on: before a receipt, after a line of audit or a message."""
    try:
        plain = base64.b64decode(text.encode("ascii"), altchars=b"-_", validate=True).decode("ascii")
    except (UnicodeError, binascii.Error, ValueError):
        raise invalid_cursor() from None
    found = _PLACE.fullmatch(plain)
    if not found or found[1] != of:
        raise invalid_cursor()
    return int(found[2])


def write_place(number: int, of: List = "jobs") -> str:
    return base64.urlsafe_b64encode(f"{of}:{number}".encode()).decode()


def invalid_cursor() -> Refused:
    return Refused(ProblemCode.CURSOR_INVALID, "This cursor was not given out for this list of entries.")
