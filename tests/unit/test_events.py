"""Every event type says which data it may carry, and every time is written one way."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from workflows.contract.events import EVENT_DATA, TERMINAL_EVENTS, Event, EventType, timestamp

TYPES = (
    "job.queued, job.held, job.released, job.started, job.recovered, job.succeeded, job.failed, job.canceled, "
    "step.started, step.finished, tool.started, tool.finished, tool.refused, request.opened, request.voted, "
    "request.decided, request.expiring, request.expired, request.voided, decision.refused, cancel.requested, "
    "attempt.replaced, effect.unknown, effect.reconciled, authority.revoked, budget.warning, artifact.published"
)
"""The list of api.md."""


def test_types_are_those_of_the_contract_and_each_has_a_data_row() -> None:
    assert {kind.value for kind in EventType} == set(TYPES.split(", "))
    assert set(EVENT_DATA) == set(EventType)


def test_ends_are_the_three_ends() -> None:
    assert {kind.value for kind in TERMINAL_EVENTS} == {"job.succeeded", "job.failed", "job.canceled"}


def test_no_event_carries_arguments_or_results() -> None:
    forbidden = {"args", "arguments", "input", "output", "result", "token", "answer", "reason_text"}
    assert not forbidden & set().union(*EVENT_DATA.values())


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), "2026-01-02T03:04:05Z"),
        (datetime(2026, 1, 2, 3, 4, 5, 60, tzinfo=UTC), "2026-01-02T03:04:05.000060Z"),
        (datetime(2026, 1, 2, 8, 34, 5, tzinfo=timezone(timedelta(hours=5, minutes=30))), "2026-01-02T03:04:05Z"),
        (datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC), "9999-12-31T23:59:59.999999Z"),
    ],
)
def test_time_is_written_in_utc_with_z(value: datetime, text: str) -> None:
    assert timestamp(value) == text


def test_event_survives_its_json_and_ignores_what_it_does_not_know() -> None:
    event = Event(
        seq=1, at=datetime(2026, 1, 2, tzinfo=UTC), type=EventType.JOB_QUEUED, message="m", data={"mode": "live"}
    )
    text = event.model_dump_json()
    assert Event.model_validate_json(text) == event
    assert Event.model_validate_json(text[:-1] + ', "later": 1}') == event
    assert '"at":"2026-01-02T00:00:00Z"' in text
