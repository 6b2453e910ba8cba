"""Each invariant sees its mutant: one fact of a good run is doctored, and exactly that invariant turns red."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gateway.actions import action_digest
from tests.chaos import good_facts as on
from tests.chaos.checker import check, names
from tests.chaos.facts import DecisionFacts, Facts, OddAnswer, QuietFacts, Told, VerdictFacts, WatchFacts
from tests.chaos.good_facts import MS, T0, called, event, row, view
from tests.chaos.mutants import MUTANTS as PRODUCT
from tests.chaos.plan import draw
from tests.chaos.reporting import counts
from workflows.contract.ids import Digest, ToolName

GOOD = on.good(action_digest(ToolName("pay"), Digest(on.PLUGIN), {"n": 3}))
Doctor = Callable[[Facts], Facts]


def of_job(key: str, **members: Any) -> Doctor:
    def doctor(facts: Facts) -> Facts:
        return replace(facts, jobs=tuple(replace(one, **members) if one.key == key else one for one in facts.jobs))

    return doctor


def of_call(number: int, **members: Any) -> Doctor:
    def doctor(facts: Facts) -> Facts:
        calls = tuple(replace(one, **members) if one.number == number else one for one in facts.calls)
        return replace(facts, calls=calls)

    return doctor


def of_effect(number: int, **members: Any) -> Doctor:
    def doctor(facts: Facts) -> Facts:
        changed = (replace(one, **members) if one.effect_id == f"eff_{number}" else one for one in facts.effects)
        return replace(facts, effects=tuple(changed))

    return doctor


def more(**added: Any) -> Doctor:
    return lambda facts: replace(facts, **{name: (*getattr(facts, name), one) for name, one in added.items()})


def without(name: str, number: int) -> Doctor:
    return lambda facts: replace(
        facts, **{name: tuple(one for at, one in enumerate(getattr(facts, name)) if at != number)}
    )


def of_decision(**members: Any) -> Doctor:
    return lambda facts: replace(facts, decisions=tuple(replace(one, **members) for one in facts.decisions))


def of_cancel(number: int, **members: Any) -> Doctor:
    return lambda facts: replace(
        facts,
        cancels=tuple(replace(one, **members) if at == number else one for at, one in enumerate(facts.cancels)),
    )


def watched(given: tuple[tuple[int | None, str], ...]) -> Doctor:
    return more(watches=WatchFacts("plain", "poll", given))


RECEIPT = on.receipt("plain")
RUN = GOOD.runs[0]
TWO_EVENTS = (event(1, "job.queued"), event(3, "job.succeeded"))
STOPPED_LATE = (called(8, "stopped", "keep", "idempotent_write", 66), row(8, "stopped", "keep", "idempotent_write"))
MUTANTS: list[tuple[str, str, Doctor]] = [
    ("one_run_per_key", "another receipt", of_job(
        "plain", told=(Told(202, RECEIPT, T0), Told(200, RECEIPT + b" ", T0)))),
    ("one_run_per_key", "two 202", of_job("plain", told=(Told(202, RECEIPT, T0), Told(202, RECEIPT, T0)))),
    ("one_run_per_key", "two chains", more(runs=replace(RUN, run="other", first="other"))),
    ("one_run_per_key", "no run", without("runs", 0)),
    ("one_run_per_key", "a stranger", more(runs=replace(RUN, job="stranger"))),
    ("every_key_is_answered", "silence", more(jobs=replace(on.job("lost"), told=(), view=None, events=(), seen=()))),
    ("write_at_most_once", "sent twice", more(calls=replace(GOOD.calls[1], number=9, epoch=2))),
    ("one_effect_per_call", "two ids", lambda facts: more(
        calls=replace(facts.calls[1], number=9, key="eff_9"), effects=row(9, "plain", "ship"))(facts)),
    ("one_effect_per_call", "an approval used twice", lambda facts: more(
        effects=row(9, "asked", "pay", state="unknown", request="r1"))(facts)),
    ("epochs_rise", "the same epoch again", of_call(5, epoch=1)),
    ("epochs_rise", "an epoch that the ledger never gave", of_call(5, epoch=3)),
    ("nothing_after_cancel", "not named", of_cancel(0, in_flight=(), answered_ns=T0 + 59 * MS)),
    ("nothing_after_cancel", "a new write", more(calls=STOPPED_LATE[0], effects=STOPPED_LATE[1])),
    ("nothing_after_cancel", "a late read", more(calls=called(8, "stopped", "look", "read", 500))),
    ("nothing_after_deadline", "a late write", of_call(2, at_wall_ns=on.WALL + 61_000 * MS)),
    ("writes_are_decided", "no decision", without("decisions", 0)),
    ("writes_are_decided", "nobody was asked", of_effect(3, request=None)),
    ("writes_are_decided", "another action", of_decision(action_digest="sha256:1")),
    ("writes_are_decided", "other bytes", of_call(3, body='{"n":4}')),
    ("writes_are_decided", "a rejection", lambda facts: replace(
        of_decision(decision="reject")(facts), verdicts=())),
    ("writes_are_decided", "decided afterwards", of_decision(at_wall_ns=on.WALL + 5_000 * MS)),
    ("writes_are_decided", "an approver who is gone", of_call(3, at_ns=T0 + 300 * MS)),
    ("nothing_after_revocation", "a late read", of_call(7, at_ns=T0 + 200 * MS)),
    ("ledger_agrees", "confirmed, and never sent", without("calls", 1)),
    ("ledger_agrees", "reconciled, and never sent", lambda facts: without("calls", 5)(
        of_effect(6, state="reconciled")(facts))),
    ("ledger_agrees", "failed, and it was done", of_effect(2, state="failed")),
    ("ledger_agrees", "of this epoch nothing left, and it came", of_effect(6, state="intended")),
    ("ledger_agrees", "an effect without a row", without("effects", 0)),
    ("ledger_agrees", "of another job", of_effect(2, job="kept")),
    ("accepted_ends_or_waits", "runs for ever", of_job("kept", view=view("running"), seen=())),
    ("accepted_ends_or_waits", "waits for what is decided", more(
        decisions=DecisionFacts("parked", "r1", "approve", "sha256:2", ("ann",), 0))),
    ("accepted_ends_or_waits", "waits for nothing", of_job("parked", view=view("waiting_for_human"))),
    ("accepted_ends_or_waits", "can not be read", of_job("kept", view=None)),
    ("accepted_ends_or_waits", "runs on behind its end", lambda facts: replace(
        facts, runs=tuple(replace(one, status="RUNNING") for one in facts.runs))),
    ("status_never_returns", "failed, then not", of_job("plain", seen=(("running", "failed", "succeeded"),))),
    ("status_never_returns", "ended, then runs", of_job("plain", seen=(("succeeded", "running"),))),
    ("events_have_no_gap", "a gap", of_job("kept", events=TWO_EVENTS)),
    ("events_have_no_gap", "no end", of_job("kept", events=(event(1, "job.queued"), event(2, "job.started")))),
    ("watchers_miss_nothing", "a gap", watched(((1, "job.queued"), (3, "job.succeeded")))),
    ("watchers_miss_nothing", "a repetition", watched(((1, "job.queued"), (1, "job.queued")))),
    ("watchers_miss_nothing", "another event", watched(((1, "job.held"),))),
    ("cancel_has_one_time", "two times", of_cancel(1, requested_at="later")),
    ("cancel_has_one_time", "still waiting", more(cancels=replace(GOOD.cancels[0], job="parked", in_flight=()))),
    ("one_verdict_per_request", "two answers", more(
        verdicts=VerdictFacts("asked", "r1", "approval", "bob", "reject", 200, "reject"))),
    ("one_verdict_per_request", "not the ledger's", more(
        decisions=DecisionFacts("parked", "r9", "reject", "sha256:2", ("ann",), 0),
        verdicts=VerdictFacts("parked", "r9", "approval", "bob", "approve", 200, "approve"))),
    ("reads_change_nothing", "a history grew", lambda facts: replace(
        facts, quiet=QuietFacts({"history of a": 20}, {"history of a": 21}, 9))),
    ("reads_change_nothing", "a row came", lambda facts: replace(facts, quiet=QuietFacts({}, {"rows of votes": 1}, 9))),
    ("answers_are_fit", "a 500", more(odd=OddAnswer("GET /v1/jobs", 500, "internal"))),
]  # fmt: skip


def test_a_run_as_promised_has_no_violation() -> None:
    assert check(GOOD) == []


@pytest.mark.parametrize(("rule", "doctor"), [pytest.param(r, d, id=f"{r}-{what}") for r, what, d in MUTANTS])
def test_the_invariant_sees_its_mutant_and_no_other_does(rule: str, doctor: Doctor) -> None:
    found = check(doctor(GOOD))
    assert {one.rule for one in found} == {rule}
    assert all(one.says for one in found)


def test_every_invariant_has_a_mutant_of_the_facts_and_one_of_the_product() -> None:
    assert {rule for rule, _, _ in MUTANTS} == {one.rule for one in PRODUCT.values()} == set(names())


def test_a_seed_and_a_length_make_one_plan() -> None:
    assert draw(7, 30) == draw(7, 30)
    assert draw(7, 30) != draw(8, 30)


@pytest.mark.parametrize("told", ["happened", "did_not_happen"])
def test_what_a_person_said_of_an_effect_is_believed(told: str) -> None:
    """Where they were asked, and only as they said."""
    word = DecisionFacts("stopped", "r2", "settle", "sha256:3", ("bob",), 0, answer=told, effect_id="eff_6")
    said = more(decisions=word)(GOOD)
    assert check(of_effect(6, state="reconciled" if told == "happened" else "failed")(said)) == []


def test_a_tool_that_refuses_has_failed() -> None:
    refused = replace(of_effect(2, state="failed")(GOOD), refusing=frozenset({2}))
    assert check(refused) == []


def test_the_report_counts_what_was_exercised() -> None:
    counted = counts(GOOD)
    assert (counted["jobs accepted"], counted["jobs canceled"], counted["cancels of open jobs"]) == (6, 1, 1)
    assert counted["idempotent writes sent again"] == 1
    assert counted["settlements"] == 0
