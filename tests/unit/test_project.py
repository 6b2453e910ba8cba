"""Facts to answers: what an app is told in every state, with a worker and without one."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from itertools import product
from typing import get_args

import pytest

from facade.project import Look, project
from facade.reader import Ending, LedgerFacts, Writes
from facade.views import JobAnswer
from tests.unit.facts import (
    FULL_ACCESS,
    MEMO,
    NOW,
    REQUEST,
    T0,
    event,
    execution,
    ledger,
    live,
    progress,
    step,
    view,
)
from workflows.contract.errors import FailureCode, ProblemCode, Refused
from workflows.contract.events import EventType
from workflows.contract.job import TERMINAL, Failure, Status, Usage

ENDINGS: tuple[Ending, ...] = get_args(Ending)
DERIVED: Mapping[Ending, tuple[Status, FailureCode | None]] = {
    "completed": (Status.FAILED, FailureCode.INTERNAL),
    "failed": (Status.FAILED, FailureCode.INTERNAL),
    "canceled": (Status.CANCELED, None),
    "terminated": (Status.FAILED, FailureCode.ENDED_BY_OPERATOR),
    "timed_out": (Status.FAILED, FailureCode.DEADLINE_EXCEEDED),
}


def answer(look: Look, facts: LedgerFacts | None = None) -> JobAnswer:
    found = project(look, facts or ledger(), NOW)
    assert isinstance(found, JobAnswer)
    return found


def refusal(look: Look, facts: LedgerFacts) -> Refused:
    found = project(look, facts, NOW)
    assert isinstance(found, Refused)
    return found


# ---- no execution


def test_a_job_without_a_receipt_is_not_found() -> None:
    assert refusal(Look(execution()), LedgerFacts(None, None, FULL_ACCESS)).code == ProblemCode.NOT_FOUND


def test_a_reservation_without_an_execution_is_admission_unknown() -> None:
    found = refusal(Look(None), ledger(confirmed=False))
    assert (found.code, found.retry_after_s) == (ProblemCode.ADMISSION_UNKNOWN, 1)


def test_an_accepted_job_that_the_engine_forgot_is_expired_and_shows_its_receipt() -> None:
    found = refusal(Look(None), ledger())
    assert (found.code, found.extras["receipt"]) == (ProblemCode.JOB_EXPIRED, {"job_id": "k-1"})


def test_a_refused_reservation_is_not_found() -> None:
    assert refusal(Look(None), ledger(confirmed=False, refused=True)).code == ProblemCode.NOT_FOUND


def test_a_reservation_whose_execution_is_there_is_answered() -> None:
    assert answer(Look(execution()), ledger(confirmed=False)).status == "queued"


# ---- ended is ended


@pytest.mark.parametrize(("ending", "status"), [*product(ENDINGS, Status)])
def test_an_ended_execution_is_ended_whatever_else_is_said(ending: Ending, status: Status) -> None:
    found = answer(Look(execution(view(status), ending), view=live(view(Status.RUNNING, 99))))
    assert found.status in TERMINAL
    assert found.status == (status if status in TERMINAL else DERIVED[ending][0])
    assert found.finished_at is not None
    assert (found.pending, found.overdue, found.failure is not None) == ((), False, found.status == "failed")


@pytest.mark.parametrize("ending", ENDINGS)
def test_an_end_that_no_workflow_wrote_is_derived_without_a_number(ending: Ending) -> None:
    found = answer(Look(execution(view(requests=(REQUEST,)), ending)))
    status, code = DERIVED[ending]
    assert (found.status, found.failure and found.failure.code) == (status, code)
    assert (found.last_event.seq, found.last_event.at, found.next_cursor) == (None, NOW, "end")
    assert found.last_event.message


def test_the_close_event_tells_of_an_end_that_the_memo_does_not() -> None:
    record = execution(view(Status.FAILED, 7)).recorded
    found = answer(Look(execution(None, "failed"), record=record))
    assert (found.failure and found.failure.code, found.last_event.seq) == (FailureCode.TOOL_FAILED, 7)


def test_a_view_that_has_ended_is_believed_before_the_engine_closed_the_execution() -> None:
    found = answer(Look(execution(view(Status.RUNNING, 5)), view=live(view(Status.SUCCEEDED, 6))))
    assert (found.status, found.last_event.seq) == ("succeeded", 6)


def test_a_write_in_doubt_at_the_end_is_unknown_and_needs_a_person() -> None:
    found = answer(Look(execution(view(), "terminated"), writes="not_known"))
    assert (found.executed, found.recovery) == ("unknown", "needs_person")


# ---- open: the freshest account wins


def test_before_the_first_word_of_a_worker_the_job_is_queued_by_its_memo() -> None:
    found = answer(Look(execution()))
    assert (found.status, found.last_event.seq, found.executed, found.next_cursor) == ("queued", 1, "no", "1")
    assert found.next_action.code == "wait"


@pytest.mark.parametrize(("memo", "query", "wins"), [(5, 5, "query"), (5, 6, "query"), (6, 5, "memo")])
def test_the_query_wins_where_it_is_at_least_as_fresh(memo: int, query: int, wins: str) -> None:
    told = live(view(seq=query, usage=Usage(steps=2)))
    found = answer(Look(execution(view(seq=memo, usage=Usage(steps=1))), view=told))
    assert found.usage.steps == {"query": 2, "memo": 1}[wins]
    assert found.last_event.seq == max(memo, query)


def test_a_running_step_brings_last_event_and_usage_past_the_memo() -> None:
    found = answer(Look(execution(view(seq=3), pending=(step(4, steps=1), step(6, steps=3), step(5, steps=2)))))
    assert (found.last_event.seq, found.usage.steps) == (6, 3)


def test_an_older_step_does_not_take_the_memo_back() -> None:
    found = answer(Look(execution(view(seq=9, usage=Usage(steps=4)), pending=(step(6, steps=3),))))
    assert (found.last_event.seq, found.usage.steps) == (9, 4)


def test_without_a_worker_every_field_but_events_and_source_is_the_live_one() -> None:
    running = execution(view(seq=3, executed="no"), pending=(step(4, steps=1),))
    told = view(seq=4, executed="no", last_event=event(4), usage=Usage(steps=1))
    assert answer(Look(running)) == answer(Look(running, view=live(told)))


@pytest.mark.parametrize(
    ("look", "expected"),
    [
        (Look(execution(view(executed="no"), pending=(step(6, started=False),))), "no"),
        (Look(execution(view(executed="no"), pending=(step(6),))), "yes"),
        (Look(execution(view(executed="no"), pending=(step(None),))), "yes"),
        (Look(execution(view(executed="no"), pending=(step(None, activity="read_decision"),))), "no"),
        (Look(execution(view(executed="no"), pending=(step(None, activity="tool", started=False),))), "yes"),
        (Look(execution(view(executed="no"), pending=(step(6, activity="publish", started=False),))), "yes"),
        (Look(execution(view(executed="no")), progress=progress(6)), "yes"),
        (Look(execution(view(executed="no"), pending=(step(None, started=False),)), progress=progress(6)), "no"),
        (
            Look(
                execution(view(executed="no"), pending=(step(None, started=False),)),
                progress=progress(6, EventType.ATTEMPT_REPLACED),
            ),
            "yes",
        ),
        (Look(execution(view(executed="unknown"), pending=(step(6),))), "unknown"),
        (Look(execution(view(executed="yes"))), "yes"),
        (Look(execution(view(executed="no"), "terminated")), "no"),
        (Look(execution(view(executed="no"), "terminated"), progress=progress(6)), "unknown"),
        (Look(execution(view(Status.CANCELED, executed="no"), "canceled"), progress=progress(6)), "unknown"),
        (Look(execution(view(Status.FAILED, executed="no"), "failed"), progress=progress(6)), "yes"),
    ],
)
def test_executed_says_what_is_known_of_started_calls(look: Look, expected: str) -> None:
    assert answer(look).executed == expected


# ---- cancel, deadline, people


@pytest.mark.parametrize("status", [s for s in Status if s not in TERMINAL])
def test_a_stop_in_the_ledger_is_canceling_with_the_ledgers_time(status: Status) -> None:
    found = answer(Look(execution(view(status, requests=(REQUEST,)))), ledger(stop_at=T0))
    assert (found.status, found.cancel_requested_at, found.pending) == ("canceling", T0, ())
    assert found.next_action.code == "wait"


def test_a_stop_that_came_after_the_end_changes_no_ending() -> None:
    found = answer(Look(execution(view(Status.SUCCEEDED), "completed")), ledger(stop_at=T0))
    assert (found.status, found.cancel_requested_at) == ("succeeded", T0)


@pytest.mark.parametrize(("past", "overdue"), [(timedelta(0), False), (timedelta(microseconds=1), True)])
def test_overdue_begins_after_the_deadline(past: timedelta, overdue: bool) -> None:
    found = project(Look(execution(view())), ledger(), MEMO.deadline + past)
    assert isinstance(found, JobAnswer)
    assert found.overdue is overdue


def test_only_pending_requests_are_shown() -> None:
    closed = REQUEST.model_copy(update={"request_id": "r2-4f4f4f", "state": "approved"})
    found = answer(Look(execution(view(Status.WAITING_FOR_HUMAN, requests=(REQUEST, closed)))))
    assert [request.request_id for request in found.pending] == ["r1-4f4f4f"]
    assert found.next_action.model_dump() == {"code": "decide", "message": "An approver must decide r1-4f4f4f."}


@pytest.mark.parametrize("code", FailureCode)
def test_every_failure_has_advice(code: FailureCode) -> None:
    failed = view(Status.FAILED, failure=Failure(code=code, message="No."))
    found = answer(Look(execution(failed, "failed")))
    assert found.next_action.code in ("retry", "change_input", "ask_operator")
    assert found.next_action.message


@pytest.mark.parametrize("status", [Status.CANCELED, Status.FAILED])
@pytest.mark.parametrize(
    ("writes", "steps", "executed"),
    [("not_known", 3, "unknown"), ("known", 3, "yes"), ("none", 3, "yes"), ("none", 1, "unknown")],
)
@pytest.mark.parametrize("code", [FailureCode.DEADLINE_EXCEEDED, FailureCode.EFFECT_UNKNOWN])
def test_nobody_is_told_to_run_a_job_again_while_the_ledger_does_not_know_what_came_of_a_write(
    status: Status, writes: Writes, steps: int, executed: str, code: FailureCode
) -> None:
    """The first step asks the model: nobody has to find out anything about it."""
    failure = Failure(code=code, message="No.")
    over = view(status, executed="unknown", usage=Usage(steps=steps), recovery="needs_person", failure=failure)
    found = answer(Look(execution(over, "failed" if status is Status.FAILED else "canceled"), writes=writes))
    in_doubt = writes == "not_known"
    assert (found.next_action.code == "ask_operator") is in_doubt
    assert ("Find out" in found.next_action.message) is in_doubt
    assert (found.executed, found.recovery) == (executed, "needs_person" if executed == "unknown" else "none")


def test_a_held_job_says_that_an_operator_must_open_the_gate() -> None:
    memo = MEMO.model_copy(update={"eligibility": "dry_run_eligible", "blocker": "awaiting_promotion"})
    found = answer(Look(replace(execution(), memo=memo)))
    assert (found.status, found.next_action.code, found.blocker) == ("queued", "ask_operator", "awaiting_promotion")


def test_a_dry_run_answers_with_its_plan() -> None:
    plan = ({"tool": "refunds.create", "kind": "http", "effect": "write", "asks": "always", "would_ask": "finance"},)
    found = answer(Look(execution(view(Status.SUCCEEDED, plan=plan), "completed")))
    assert found.result == {"planned": [*plan]}


@pytest.mark.parametrize("status", Status)
def test_no_state_is_silent(status: Status) -> None:
    found = answer(Look(execution(view(status))))
    assert found.last_event.message
    assert found.next_action.message
