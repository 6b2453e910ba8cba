"""The whole transition table against one stated here: every status, every event, whatever is open or running."""

from itertools import product

import pytest

from workflows.contract.events import EventType
from workflows.contract.job import TERMINAL, Status
from workflows.policy.transitions import IllegalTransition, next_status

NEW, QUEUED, RUNNING, WAITING, CANCELING = None, "queued", "running", "waiting_for_human", "canceling"
OPEN = "running or waiting"
"""Settles: waiting_for_human where a request is open and no step runs, else running."""

Row = dict[str | None, str]

STAYS_OPEN: Row = {RUNNING: OPEN, WAITING: OPEN}
WINDING_DOWN: Row = {**STAYS_OPEN, CANCELING: CANCELING}
ANYWHERE: Row = {**WINDING_DOWN, QUEUED: QUEUED}

EXPECTED: dict[str, Row] = {
    "job.queued": {NEW: QUEUED},
    "job.held": {QUEUED: QUEUED},
    "job.released": {QUEUED: QUEUED},
    "job.started": {QUEUED: RUNNING},
    "job.recovered": ANYWHERE,
    "job.succeeded": {QUEUED: "succeeded", RUNNING: "succeeded"},
    "job.failed": {QUEUED: "failed", RUNNING: "failed", WAITING: "failed"},
    "job.canceled": {CANCELING: "canceled"},
    "cancel.requested": {QUEUED: CANCELING, RUNNING: CANCELING, WAITING: CANCELING},
    "step.started": STAYS_OPEN,
    "step.finished": WINDING_DOWN,
    "tool.started": STAYS_OPEN,
    "tool.finished": WINDING_DOWN,
    "tool.refused": STAYS_OPEN,
    "request.opened": STAYS_OPEN,
    "request.voted": STAYS_OPEN,
    "request.decided": STAYS_OPEN,
    "request.expiring": STAYS_OPEN,
    "request.expired": STAYS_OPEN,
    "request.voided": WINDING_DOWN,
    "decision.refused": ANYWHERE,
    "attempt.replaced": STAYS_OPEN,
    "effect.unknown": WINDING_DOWN,
    "effect.reconciled": WINDING_DOWN,
    "authority.revoked": ANYWHERE,
    "budget.warning": WINDING_DOWN,
    "artifact.published": STAYS_OPEN,
}

STATUSES: tuple[Status | None, ...] = (None, *Status)


@pytest.mark.parametrize("event", EventType)
@pytest.mark.parametrize("status", STATUSES, ids=lambda status: status or "new")
def test_table(status: Status | None, event: EventType) -> None:
    expected = EXPECTED[event].get(status)
    for requests_open, steps_running in product((0, 1, 3), (0, 1, 2)):
        if expected is None:
            with pytest.raises(IllegalTransition):
                next_status(status, event, requests_open=requests_open, steps_running=steps_running)
            continue
        settled = WAITING if requests_open and not steps_running else RUNNING
        got = next_status(status, event, requests_open=requests_open, steps_running=steps_running)
        assert got == (settled if expected == OPEN else expected)


@pytest.mark.parametrize("status", sorted(TERMINAL))
def test_terminal_status_has_no_way_out(status: Status) -> None:
    for event in EventType:
        with pytest.raises(IllegalTransition):
            next_status(status, event, requests_open=0, steps_running=0)


def test_canceling_leads_to_canceled_only() -> None:
    reached: set[str] = set()
    for event in EventType:
        try:
            reached.add(next_status(Status.CANCELING, event, requests_open=1, steps_running=1))
        except IllegalTransition:
            continue
    assert reached == {"canceling", "canceled"}


def test_every_status_can_be_reached_and_every_event_has_a_row() -> None:
    assert set(EXPECTED) == {event.value for event in EventType}
    reached = {target for row in EXPECTED.values() for target in row.values()} - {OPEN} | {RUNNING, WAITING}
    assert reached == {status.value for status in Status}
