"""Cursors: opaque text for clients, and the one place that reads and writes it.

In a job's log a cursor is the seq of the last event seen, or `end` after the derived end of a job that the engine
ended. In a list it is the row's number in disguise, so that nobody computes with it.
"""

import base64
import binascii
import re
from collections.abc import Sequence
from typing import Literal

from workflows.contract.errors import ProblemCode, Refused
from workflows.contract.events import Event

END = "end"
_SEQ = re.compile(r"0|[1-9][0-9]{0,9}", re.ASCII)
_PLACE = re.compile(r"([a-z]+):([1-9][0-9]{0,17})", re.ASCII)
List = Literal["jobs", "audit", "messages"]
"""Which list a cursor was given out for; another one's is refused."""

Cursor = int | None
"""The seq after which to go on; None: after the derived end."""


def read_cursor(text: str) -> Cursor:
    if text == END:
        return None
    if not _SEQ.fullmatch(text):
        raise invalid_cursor()
    return int(text)


def write_cursor(seq: Cursor) -> str:
    return END if seq is None else str(seq)


def cursor_after(events: Sequence[Event], cursor: Cursor) -> Cursor:
    """Where a reader stands who saw these events after `cursor`."""
    return events[-1].seq if events else cursor


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
