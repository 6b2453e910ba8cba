"""A job's event log out of its pieces: segments in blobs, the run's tail, steps in flight, the derived end.

`join` is pure and never leaves a gap: it gives the events after a cursor as far as they follow one another without a
missing number. The rest here only fetches the segments that a page needs.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pydantic import TypeAdapter
from pydantic_core import from_json

from facade.cursors import Cursor, cursor_after, cursor_at, invalid_cursor
from facade.project import Look, ended, era, state_of, unheard
from facade.reader import Reader
from workflows.contract.events import Event
from workflows.contract.ids import Workspace
from workflows.contract.job import SegmentRef
from workflows.opening import queued_event

_EVENTS = TypeAdapter(tuple[Event, ...])


@dataclass(frozen=True, slots=True)
class Page:
    """Events after a cursor, oldest first. `complete`: nothing follows them that is known to exist or may yet come."""

    events: tuple[Event, ...]
    cursor: Cursor
    complete: bool


def known_events(look: Look) -> dict[int, Event]:
    """Every event that these facts hold, by seq; archived segments aside, and what was told before the newest reset."""
    execution = look.execution
    assert execution is not None
    found, newest = [queued_event(execution.memo)], era(state_of(look))
    for record in (execution.recorded, look.record):
        if record is not None and era(record.view) == newest:
            found += [*record.events, record.view.last_event]
    found += [pending.progress.event for pending in execution.pending if pending.progress is not None]
    found += [look.progress.event] if look.progress is not None else []
    found += look.view.events if look.view is not None else ()
    return {event.seq: event for event in found if event.seq is not None}


def segments_of(look: Look) -> tuple[SegmentRef, ...]:
    """The archived segments by the account that knows most of them."""
    told = [look.view.segments] if look.view is not None else []
    execution = look.execution
    records = [r for r in (look.record, execution.recorded if execution else None) if r is not None]
    told += [r.segments for r in records if era(r.view) == era(state_of(look))]
    return max(told, key=len, default=())


def join(known: Mapping[int, Event], after: int, limit: int) -> list[Event]:
    """The events after `after` without a gap, at most `limit`."""
    page: list[Event] = []
    while len(page) < limit and (event := known.get(after + len(page) + 1)) is not None:
        page.append(event)
    return page


def last_seq(look: Look) -> int:
    """The highest seq that any of these facts names."""
    return max(max(known_events(look)), look.view.last_seq if look.view is not None else 0)


async def page_of(reader: Reader, workspace: Workspace, look: Look, cursor: Cursor, limit: int) -> Page:
    """Events after the cursor. Raises Refused(CURSOR_INVALID) beyond the end of a job that has ended.

    A cursor beyond the last event known here is believed otherwise: a live reader may have been ahead of the record.
    """
    view, over = state_of(look), ended(look)
    place = cursor.place_in(view.resets)
    derived = view.last_event if over and view.last_event.seq is None else None
    if place is None:
        if derived is None and not unheard(look):
            raise invalid_cursor()
        return Page((), cursor, complete=True)
    if over and derived is None and place > last_seq(look):
        raise invalid_cursor()
    known = await _archived(reader, workspace, segments_of(look), place, limit) | known_events(look)
    events = join(known, place, limit)
    seen = place + len(events)
    if derived is not None and len(events) < limit and seen >= last_seq(look):
        return Page((*events, derived), cursor_at(None, view.resets), complete=True)
    after = cursor_after(events, cursor, view.resets)
    return Page(tuple(events), after, complete=seen >= last_seq(look) and derived is None)


async def _archived(
    reader: Reader, workspace: Workspace, segments: Iterable[SegmentRef], after: int, limit: int
) -> dict[int, Event]:
    """The archived events of a page, and of its segments no others; one whose content was erased is a gap, and the page
    ends before it."""
    found: dict[int, Event] = {}
    for segment in segments:
        if segment.last <= after or segment.first > after + limit:
            continue
        try:
            stored = from_json(await reader.blob(workspace, segment.ref))
        except KeyError:
            break
        wanted = stored[max(after + 1 - segment.first, 0) : after + limit + 1 - segment.first]
        found |= {event.seq: event for event in _EVENTS.validate_python(wanted) if event.seq is not None}
    return found
