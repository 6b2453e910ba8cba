"""The journal's numbering, pages and bounds, without a server (`publish` is seen in tests/workflow)."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from temporalio import workflow

from workflows.contract.events import EventType as E
from workflows.contract.gates import Eligibility
from workflows.contract.ids import BlobRef, Digest, RequestId, ToolName
from workflows.contract.job import MEMO_STATE, Event, JobView, OpenRequest, SegmentRef, Status
from workflows.journal import CLOSED_REQUESTS_KEPT, PAGE_BYTES, RECORD_BYTES, RUNNING_TAIL_BYTES, Journal, size_of
from workflows.policy.transitions import IllegalTransition

AT = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The workflow's clock, which only runs inside a workflow."""
    monkeypatch.setattr(workflow, "now", lambda: AT)


def journal(status: Status = Status.RUNNING) -> Journal:
    first = Event(seq=1, at=AT, type=E.JOB_QUEUED, message="Accepted.")
    view = JobView(status=status, eligibility=Eligibility.LIVE_APPROVED, last_event=first)
    return Journal(view, (first,), (), 1)


def request(number: int, **fields: Any) -> OpenRequest:
    base: dict[str, Any] = {
        "request_id": RequestId(f"r{number}-000000"),
        "kind": "approval",
        "title": "May it?",
        "tool": ToolName("t"),
        "call": 0,
        "action_digest": Digest("sha256:" + "0" * 64),
        "args_ref": BlobRef(Digest("sha256:" + "1" * 64)),
        "opened_at": AT,
        "expires_at": AT + timedelta(hours=1),
    }
    return OpenRequest(**(base | fields))


def test_events_are_numbered_without_gaps() -> None:
    log = journal()
    for _ in range(5):
        log.emit(E.STEP_STARTED, "Asking.", {"turn": 1, "attempt": 1})
    assert [event.seq for event in log.events] == [1, 2, 3, 4, 5, 6]
    assert log.view.last_event == log.events[-1]


def test_illegal_event_raises_and_changes_nothing() -> None:
    log = journal(Status.SUCCEEDED)
    before = (log.view, list(log.events), log.seq, log.due())
    with pytest.raises(IllegalTransition):
        log.emit(E.STEP_STARTED, "Asking.", {"turn": 1, "attempt": 1}, executed="yes")
    assert (log.view, log.events, log.seq, log.due()) == before


def test_data_that_is_not_documented_is_refused_and_changes_nothing() -> None:
    log = journal()
    with pytest.raises(ValueError, match="secret"):
        log.emit(E.STEP_STARTED, "Asking.", {"turn": 1, "secret": "s"})
    assert log.seq == 1


def test_status_waits_for_people_only_when_nothing_else_can_proceed() -> None:
    log = journal()
    log.steps_running = 1
    log.emit(E.REQUEST_OPENED, "Ask.", requests=log.replace_request(request(1)))
    assert log.view.status is Status.RUNNING
    log.steps_running = 0
    log.emit(E.TOOL_FINISHED, "Done.")
    assert log.view.status is Status.WAITING_FOR_HUMAN
    log.emit(E.REQUEST_DECIDED, "Yes.", requests=log.replace_request(request(1, state="approved")))
    assert log.view.status is Status.RUNNING


@pytest.mark.parametrize(
    ("status", "executed", "recovery"),
    [
        (Status.SUCCEEDED, "yes", "none"),
        (Status.FAILED, "yes", "none"),
        (Status.FAILED, "unknown", "needs_person"),
    ],
)
def test_recovery_says_whether_a_person_is_needed(status: Status, executed: str, recovery: str) -> None:
    log = journal()
    log.amend(executed=executed)
    log.emit(E.JOB_SUCCEEDED if status is Status.SUCCEEDED else E.JOB_FAILED, "End.")
    assert (log.view.status, log.view.recovery) == (status, recovery)


def test_readers_are_told_when_the_status_changes_or_no_step_runs() -> None:
    log = journal(Status.QUEUED)
    assert not log.due()
    log.steps_running = 1
    log.emit(E.JOB_STARTED, "Started.")
    assert log.due()
    running = journal()
    running.steps_running = 1
    running.emit(E.STEP_STARTED, "Asking.")
    assert running.due(), "no step carries the event yet"
    running.progress()
    assert not running.due()
    running.steps_running = 0
    running.emit(E.STEP_FINISHED, "Answered.")
    assert running.due()
    running.steps_running = 1
    running.emit(E.TOOL_STARTED, "Calling.")
    running.progress()
    assert not running.due()


def test_page_after_a_cursor_with_an_archived_head() -> None:
    log = journal()
    for _ in range(9):
        log.emit(E.STEP_STARTED, "Asking.")
    log.archived(SegmentRef(first=1, last=4, ref=BlobRef(Digest("sha256:" + "2" * 64))))
    assert [event.seq for event in log.after(0, 100)] == [5, 6, 7, 8, 9, 10]
    assert [event.seq for event in log.after(7, 2)] == [8, 9]
    assert log.after(10, 5) == log.after(99, 5) == log.after(6, 0) == ()
    assert log.emit(E.STEP_STARTED, "Asking.").seq == 11


LONG = "語" * 500
"""A message of 1,500 bytes: texts of people and models are cut by characters."""


def test_segment_is_so_many_events_or_as_many_as_have_so_many_bytes() -> None:
    log = journal()
    for _ in range(9):
        log.emit(E.STEP_FINISHED, LONG)
    assert log.segment(11, 100_000) == ()
    assert log.segment(4, 100_000) == tuple(log.events[:4])
    by_size = log.segment(11, 4000)
    assert by_size == tuple(log.events[:3]), "the first is short"
    log.archived(SegmentRef(first=1, last=8, ref=BlobRef(Digest("sha256:" + "2" * 64))))
    assert log.segment(11, 4000) == (), "what is archived does not count any more"
    assert log.segment(11, 10) == tuple(log.events[:1]), "one event at least, whatever it has"


def test_page_holds_no_more_than_the_engine_takes_and_the_next_goes_on() -> None:
    log = journal()
    for _ in range(400):
        log.emit(E.STEP_FINISHED, LONG)
    seen: list[Event] = []
    while page := log.after(len(seen), 500):
        assert sum(map(size_of, page)) <= PAGE_BYTES
        seen += page
    assert seen == log.events


def test_record_that_would_not_fit_keeps_every_number_and_the_newest_texts() -> None:
    log = journal()
    for _ in range(1000):
        log.emit(E.STEP_FINISHED, LONG, {"turn": 1})
    whole = log.events
    record = log.end_record()
    assert len(record.model_dump_json().encode()) <= RECORD_BYTES + 4096
    assert [(event.seq, event.type, event.at) for event in record.events] == [(e.seq, e.type, e.at) for e in whole]
    assert record.events[-100:] == tuple(whole[-100:])
    assert record.events[1].message == "語" * 59 + "…"
    log.emit(E.CANCEL_REQUESTED, "Cancel.")
    log.emit(E.JOB_CANCELED, "Canceled.")
    assert len(log.memo()[MEMO_STATE].model_dump_json().encode()) <= RECORD_BYTES + 4096


def test_closed_requests_stay_until_another_opens_and_open_ones_always() -> None:
    log = journal()
    count = CLOSED_REQUESTS_KEPT + 20
    for number in range(1, count + 1):
        log.amend(requests=log.replace_request(request(number)))
    for number in range(2, count + 1):
        log.amend(requests=log.replace_request(request(number, state="rejected")))
    assert len(log.view.requests) == count, "a turn's own requests can all still be read"
    log.amend(requests=log.replace_request(request(count + 1)))
    kept = log.view.requests
    assert [r.state for r in kept].count("rejected") == CLOSED_REQUESTS_KEPT
    assert [r.request_id for r in kept if r.state == "pending"] == [
        request(1).request_id,
        request(count + 1).request_id,
    ]


def test_memo_of_a_running_job_is_bounded_and_of_a_canceled_one_whole() -> None:
    log = journal()
    for _ in range(300):
        log.emit(E.DECISION_REFUSED, "x" * 200, {"reason": "unknown_signal"})
    running = log.memo()[MEMO_STATE]
    assert 0 < len(running.events) < 40
    assert running.events[-1] == log.events[-1]
    assert len(running.model_dump_json()) < 2 * RUNNING_TAIL_BYTES
    log.emit(E.CANCEL_REQUESTED, "Cancel.")
    log.emit(E.JOB_CANCELED, "Canceled.")
    assert log.memo()[MEMO_STATE].events == tuple(log.events)


def test_memo_of_an_ended_job_leaves_the_tail_to_its_result() -> None:
    log = journal()
    log.emit(E.JOB_SUCCEEDED, "Done.")
    assert log.memo()[MEMO_STATE].events == ()
    assert log.end_record().events == tuple(log.events)


def test_details_name_what_is_waited_for() -> None:
    log = journal()
    log.emit(E.REQUEST_OPENED, "Ask.", requests=log.replace_request(request(1)))
    assert "r1-000000" in log.details()
    assert "**waiting_for_human**" in log.details()


def test_details_show_outside_text_as_text() -> None:
    log = journal()
    hostile = "![x](http://evil.test/x) <b>"
    log.emit(E.REQUEST_OPENED, hostile, {"request_id": "r1-000000"}, requests=(request(1, title=hostile),))
    assert log.details().count(r"\!\[x\]\(http://evil\.test/x\) \<b\>") == 2
    assert hostile not in log.details()
