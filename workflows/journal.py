"""The job's event log and view, and the one place where the status changes.

`emit` asks the transition table, appends the event, and notes that readers without a worker must be told: on status
changes, when the set of open requests changes, and when no running step could carry the event in its heartbeat.
`publish` tells them (memo, search attributes, current details) in the same workflow task, once for many events.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from temporalio import workflow
from temporalio.common import SearchAttributeKey, SearchAttributeUpdate

from workflows.contract.events import EVENT_DATA, Event, EventType
from workflows.contract.ids import EffectId
from workflows.contract.job import (
    MEMO_REQUESTS,
    MEMO_STATE,
    TERMINAL,
    EndRecord,
    Executed,
    JobStart,
    JobView,
    OpenRequest,
    Progress,
    Recovery,
    Reset,
    SegmentRef,
    Status,
)
from workflows.contract.text import clean_text, escape_markdown
from workflows.policy.transitions import next_status

STATUS_KEY = SearchAttributeKey.for_keyword("JobgateStatus")
PENDING_KEY = SearchAttributeKey.for_int("JobgatePending")
PRINCIPAL_KEY = SearchAttributeKey.for_keyword("JobgatePrincipal")
PLUGIN_KEY = SearchAttributeKey.for_keyword("JobgatePlugin")
DEADLINE_KEY = SearchAttributeKey.for_datetime("JobgateDeadline")

RUNNING_TAIL_BYTES = 8 * 1024
"""While a job runs, its memo repeats at most this much of the newest events; an ended job keeps its whole tail."""

CLOSED_REQUESTS_KEPT = 20
"""Every memo and every answer to a reader repeats them; what is dropped is still in the events and in the ledger."""

PAGE_BYTES = 256 * 1024
"""Events that one answer to the `view` query holds; the engine takes 2 MB, and the open requests need most of it."""

RECORD_BYTES = 512 * 1024
"""Events that an end record or a roll-over carries. Only a single turn of very many long events can be more."""
CUT_MESSAGE = 60


def _recovery(status: Status, executed: str) -> Recovery:
    if status in (Status.SUCCEEDED, Status.CANCELED):
        return "none"
    if status is Status.FAILED:
        return "needs_person" if executed == "unknown" else "none"
    return "needs_person" if status is Status.WAITING_FOR_HUMAN else "automatic"


class Journal:
    """Owns view, events and sequence numbers of one job; `steps_running` counts model and tool steps in flight."""

    def __init__(
        self,
        view: JobView,
        events: tuple[Event, ...],
        segments: tuple[SegmentRef, ...],
        seq: int,
        identity: Sequence[SearchAttributeUpdate[Any]] = (),
        about: str = "",
    ) -> None:
        self.view = view
        self.events = list(events)
        self.segments = list(segments)
        self.seq = seq
        self.steps_running = 0
        self.doubts: set[EffectId] = set()
        """Effects of this turn of which nobody knows what came."""
        self._unpublished = False
        self._told_seq = seq
        self._carried_seq = 0
        self._identity = list(identity)
        self._about = about
        self._told_status: Status | None = None
        self._told_pending = 0
        self._task: datetime | None = None
        self._seq_before_task = seq
        self._size = sum(map(size_of, events))
        self._told_requests: object = None

    def emit(self, type: EventType, message: str, data: Mapping[str, Any] | None = None, **view: Any) -> Event:
        """Append an event; `view` are fields of the view that change with it. Raises IllegalTransition, unchanged."""
        if self._task != workflow.now():
            self._task, self._seq_before_task = workflow.now(), self.seq
        data = data or {}
        if unknown := data.keys() - EVENT_DATA[type]:
            raise ValueError(f"{type} has no data {sorted(unknown)}")
        requests: tuple[OpenRequest, ...] = view.get("requests", self.view.requests)
        pending = sum(request.state == "pending" for request in requests)
        status = next_status(self.view.status, type, requests_open=pending, steps_running=self.steps_running)
        event = Event(seq=self.seq + 1, at=workflow.now(), type=type, message=message, data=data)
        executed = view.get("executed", self.view.executed)
        changed = {**view, "status": status, "last_event": event, "recovery": _recovery(status, executed)}
        if status is not self.view.status or "requests" in view:
            self._unpublished = True
        self.view = self.view.model_copy(update=changed)
        self.seq += 1
        self.events.append(event)
        self._size += size_of(event)
        return event

    def recovered(self, tag: str) -> None:
        """An operator reset the job. The word of it comes before whatever else was told in this very workflow task: all
        of that may differ from what was told under these numbers before."""
        first = (self._seq_before_task if self._task == workflow.now() else self.seq) + 1
        reset = Reset(first=first, tag=tag, at=workflow.now())
        kept = len(self.events) - (self.seq + 1 - first)
        word = self.emit(
            EventType.JOB_RECOVERED,
            "An operator reset the job to here; what is recorded after this is new.",
            {"reason": "reset"},
            resets=(*self.view.resets, reset),
        )
        later = (word.model_copy(update={"seq": first - 1}), *self.events[kept:-1])
        moved = [event.model_copy(update={"seq": (event.seq or 0) + 1}) for event in later]
        self.events[kept:] = moved
        self.view = self.view.model_copy(update={"last_event": moved[-1]})

    def amend(self, **view: Any) -> None:
        """Change counts that no event of their own announces (usage, executed)."""
        self.view = self.view.model_copy(update=view)

    def executed(self) -> Executed:
        """Once a call was begun: yes, unless what came of one is not known."""
        return "unknown" if self.doubts else "yes"

    def progress(self) -> Progress:
        """What a step that is about to start repeats to readers while it runs."""
        self._carried_seq = self.seq
        return Progress(event=self.view.last_event, usage=self.view.usage)

    def pending(self) -> int:
        return sum(request.state == "pending" for request in self.view.requests)

    def replace_request(self, request: OpenRequest) -> tuple[OpenRequest, ...]:
        """The requests with this one put in place of its older self. Old closed ones go only when a new one opens, so
        that all requests of a turn and of an ending can still be read."""
        kept = [old for old in self.view.requests if old.request_id != request.request_id]
        if request.state == "pending":
            closed = [old for old in kept if old.state != "pending"][-CLOSED_REQUESTS_KEPT:]
            kept = [old for old in kept if old.state == "pending" or old in closed]
        return (*kept, request)

    def due(self) -> bool:
        """Asked once a workflow task has settled: publish, unless a running step carries the newest event."""
        carried = self._carried_seq if self.steps_running else 0
        return self._unpublished or max(self._told_seq, carried) < self.seq

    def publish(self) -> None:
        """Tell readers without a worker. Two history events at most: memo always, search attributes where changed."""
        self._unpublished = False
        self._told_seq = self.seq
        memo, told = self.memo(), self._told_requests
        self._told_requests = memo.get(MEMO_REQUESTS)
        if told is not None and told == self._told_requests:
            del memo[MEMO_REQUESTS]
        workflow.upsert_memo(memo)
        updates, self._identity = self._identity, []
        if self.view.status is not self._told_status:
            updates.append(STATUS_KEY.value_set(self.view.status.value))
        if (pending := self.pending()) != self._told_pending:
            updates.append(PENDING_KEY.value_set(pending))
        if updates:
            workflow.upsert_search_attributes(updates)  # pyright: ignore[reportUnknownMemberType] - SDK's own generic
        self._told_status, self._told_pending = self.view.status, pending
        workflow.set_current_details(self.details())

    def details(self) -> str:
        """Markdown for the Temporal UI: the operator's questions, answered in a few lines. Outside text stays text."""
        view = self.view
        waiting = "\n".join(
            f"- `{r.request_id}` {r.kind}: {escape_markdown(r.title)} (until {r.expires_at:%Y-%m-%d %H:%M:%SZ})"
            for r in view.requests
            if r.state == "pending"
        )
        return (
            f"**{view.status.value}** · {view.eligibility.value} · executed {view.executed}\n\n"
            f"Last event {view.last_event.seq}: {escape_markdown(view.last_event.message)}\n\n"
            f"Steps {view.usage.steps}, tokens {view.usage.input_tokens + view.usage.output_tokens}, "
            f"cost {view.usage.cost_usd:.4f} USD\n\n"
            + (f"Waiting for:\n{waiting}\n\n" if waiting else "")
            + self._about
        )

    def end_record(self) -> EndRecord:
        return EndRecord(view=self.view, segments=tuple(self.segments), events=self.tail())

    def after(self, seq: int, limit: int) -> tuple[Event, ...]:
        """Events this run holds whose seq is greater, oldest first: at most `limit`, and what one answer may hold."""
        first = self.seq - len(self.events) + 1
        start = max(seq - first + 1, 0)
        return _at_most(self.events[start : start + limit], PAGE_BYTES)

    def segment(self, events: int, size: int) -> tuple[Event, ...]:
        """The oldest events, where there are so many or they have so many bytes: as many as make up one segment."""
        if len(self.events) < events and self._size < size:
            return ()
        return _at_most(self.events[:events], size)

    def archived(self, segment: SegmentRef) -> None:
        self.segments.append(segment)
        self.events = [event for event in self.events if event.seq is not None and event.seq > segment.last]
        self._size = sum(map(size_of, self.events))

    def tail(self) -> tuple[Event, ...]:
        """The events that are not archived, for a record that has to fit into the engine: where they are too many for
        it, the oldest keep their place, type and time, and lose their texts."""
        kept = list(self.events)
        size = sum(map(size_of, kept))
        for place, event in enumerate(kept):
            if size <= RECORD_BYTES:
                break
            kept[place] = event.model_copy(update={"message": clean_text(event.message, CUT_MESSAGE), "data": {}})
            size -= size_of(event) - size_of(kept[place])
        return tuple(kept)

    def memo(self) -> dict[str, Any]:
        """What readers without a worker get: the view, and as many of the newest events as a memo should repeat.

        A cancellation's close event carries no details, so there the memo keeps the whole tail; the other endings
        keep it in their result or failure details. While a job runs, a request that people decided is left to the
        ledger: a turn of a hundred requests writes the memo some hundred times.
        """
        events = list(self.tail()) if self.view.status is Status.CANCELED else self.events
        if self.view.status is not Status.CANCELED:
            size, kept = 0, 0
            shown = 0 if self.view.status in TERMINAL else len(events)
            for event in reversed(events[len(events) - shown :]):
                size += 160 + len(event.message) + len(str(event.data))
                if size > RUNNING_TAIL_BYTES:
                    break
                kept += 1
            events = events[len(events) - kept :]
        record = EndRecord(view=self.view, segments=tuple(self.segments), events=tuple(events))
        if not self.view.requests or not workflow.patched("requests-apart"):
            return {MEMO_STATE: record}
        over = self.view.status in TERMINAL
        requests = tuple(r for r in self.view.requests if over or r.state in ("pending", "voided"))
        view = self.view.model_copy(update={"requests": ()})
        record = record.model_copy(update={"view": view, "requests_apart": True})
        return {MEMO_STATE: record, MEMO_REQUESTS: requests}


def size_of(event: Event) -> int:
    """In bytes, as the engine and the blobs keep it."""
    return len(event.model_dump_json().encode())


def _at_most(events: Sequence[Event], size: int) -> tuple[Event, ...]:
    """The first events, at least one, that together have at most `size` bytes."""
    for count, event in enumerate(events):
        size -= size_of(event)
        if size < 0 and count:
            return tuple(events[:count])
    return tuple(events)


def identity_of(start: JobStart) -> list[SearchAttributeUpdate[Any]]:
    """The search attributes that never change. They ride along with the first upsert: at the start each of them costs
    admissions a few per cent (docs/bench.md), here they cost nothing."""
    return [
        PRINCIPAL_KEY.value_set(start.principal),
        PLUGIN_KEY.value_set(start.plugin.name),
        DEADLINE_KEY.value_set(start.deadline),
    ]


def about(start: JobStart) -> str:
    """The lines of the details that never change: whose job it is, until when, and how to end it."""
    return (
        f"For {escape_markdown(start.principal)}, until {start.deadline:%Y-%m-%d %H:%M:%SZ}. "
        f"To stop it: Request Cancellation, or `jobgate cancel {start.job_id}`.\n"
    )
