"""Votes, verdicts and stops: one verdict per request, one stop per job, one effect per decision."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Connection, insert
from sqlalchemy.exc import IntegrityError

from gateway.ledger.decisions import (
    AlreadyDecided,
    Counted,
    Decided,
    DecisionRow,
    JobStopped,
    NoSuchJob,
    Verdict,
    VoteResult,
    VoteRow,
    VoteStands,
    cast_vote,
    close_request,
    find_decision,
    list_decisions,
    list_votes,
)
from gateway.ledger.engine import Ledger
from gateway.ledger.receipts import reserve
from gateway.ledger.stops import StopRow, find_stop, stop_job
from gateway.ledger.tables import effects
from tests.unit.ledger_rows import ACTION, APP, AT, DEMO, JOB, OPERATOR, REQUEST, SECOND, receipt, vote
from workflows.contract.ids import JobId, RequestId, Workspace, sha256_of
from workflows.contract.job import DecisionVerb


@pytest.fixture(autouse=True)
async def admitted(ledger: Ledger) -> None:
    await ledger.write(lambda conn: reserve(conn, receipt()))


def cast(ballot: VoteRow, quorum: int = 1, answer: Any = None) -> Callable[[Connection], VoteResult]:
    return lambda conn: cast_vote(conn, ballot, quorum=quorum, answer=answer)


def expire(conn: Connection) -> DecisionRow | None:
    return close_request(conn, DEMO, JOB, REQUEST, verdict="expired", action_digest=ACTION, at=AT)


def stop(by: str, after: int = 0) -> Callable[[Connection], StopRow | None]:
    return lambda conn: stop_job(conn, DEMO, JOB, by=OPERATOR if by == "operator" else APP, at=AT + after * SECOND)


async def test_one_approval_decides_when_one_is_asked_for(ledger: Ledger) -> None:
    result = await ledger.write(cast(vote("ann")))
    assert isinstance(result, Decided)
    assert not result.repeated
    assert (result.decision.decision, result.decision.decided_by, result.decision.decided_at) == (
        "approve",
        ("ann",),
        AT,
    )
    assert await ledger.read(lambda conn: find_decision(conn, DEMO, JOB, REQUEST)) == result.decision


async def test_a_quorum_is_of_distinct_people(ledger: Ledger) -> None:
    assert await ledger.write(cast(vote("ann"), quorum=2)) == Counted(1, 2)
    assert await ledger.write(cast(vote("ann", at=AT + SECOND), quorum=2)) == Counted(1, 2, repeated=True)
    result = await ledger.write(cast(vote("bob", at=AT + SECOND), quorum=2))
    assert isinstance(result, Decided)
    assert result.decision.decided_by == ("ann", "bob")
    cast_votes = await ledger.read(lambda conn: list_votes(conn, DEMO, JOB, REQUEST))
    assert [one.principal for one in cast_votes] == ["ann", "bob"]


async def test_approvals_of_another_action_do_not_count(ledger: Ledger) -> None:
    await ledger.write(cast(vote("ann", action_digest=sha256_of(b"another")), quorum=2))
    assert await ledger.write(cast(vote("bob"), quorum=2)) == Counted(1, 2)


async def test_one_rejection_decides_at_once(ledger: Ledger) -> None:
    await ledger.write(cast(vote("ann"), quorum=3))
    result = await ledger.write(cast(vote("bob", decision="reject", reason="too much"), quorum=3))
    assert isinstance(result, Decided)
    assert (result.decision.decision, result.decision.reason) == ("reject", "too much")
    assert result.decision.decided_by == ("bob",)


async def test_repeating_the_same_decision_gives_the_same_record(ledger: Ledger) -> None:
    first = await ledger.write(cast(vote("ann")))
    again = await ledger.write(cast(vote("ann", at=AT + SECOND)))
    assert isinstance(first, Decided)
    assert again == Decided(first.decision, repeated=True)


@pytest.mark.parametrize(
    "late",
    [
        vote("ann", decision="reject"),
        vote("bob"),
        vote("bob", decision="reject"),
        vote("ann", action_digest=sha256_of(b"another")),
    ],
)
async def test_what_is_decided_stays_decided(ledger: Ledger, late: VoteRow) -> None:
    first = await ledger.write(cast(vote("ann")))
    assert isinstance(first, Decided)
    assert await ledger.write(cast(late)) == AlreadyDecided(first.decision)
    assert len(await ledger.read(lambda conn: list_votes(conn, DEMO, JOB, REQUEST))) == 1


async def test_another_answer_is_another_decision(ledger: Ledger) -> None:
    ballot = vote("ann", decision="answer")
    first = await ledger.write(cast(ballot, answer={"city": "Z\u00fcrich", "n": [1, None]}))
    assert isinstance(first, Decided)
    assert first.decision.answer == {"city": "Z\u00fcrich", "n": [1, None]}
    same = await ledger.write(cast(ballot, answer={"n": [1, None], "city": "Z\u00fcrich"}))
    assert same == Decided(first.decision, repeated=True)
    assert await ledger.write(cast(ballot, answer={"city": "Bern"})) == AlreadyDecided(first.decision)


async def test_a_person_votes_once_on_a_request(ledger: Ledger) -> None:
    ballot = vote("ann")
    await ledger.write(cast(ballot, quorum=2))
    assert await ledger.write(cast(vote("ann", decision="reject"), quorum=2)) == VoteStands(ballot, 1)
    assert await ledger.read(lambda conn: find_decision(conn, DEMO, JOB, REQUEST)) is None


async def test_nothing_is_decided_past_a_stop(ledger: Ledger) -> None:
    await ledger.write(cast(vote("ann"), quorum=2))
    stopped = await ledger.write(stop("operator"))
    assert stopped is not None
    assert await ledger.write(cast(vote("bob"), quorum=2)) == JobStopped(stopped)
    assert len(await ledger.read(lambda conn: list_votes(conn, DEMO, JOB, REQUEST))) == 1


async def test_nothing_is_decided_without_a_receipt(ledger: Ledger) -> None:
    assert await ledger.write(cast(vote("ann", job_id=JobId("unknown")))) == NoSuchJob()
    assert await ledger.write(cast(vote("ann", workspace=Workspace("other")))) == NoSuchJob()


async def test_expiry_is_never_yes_and_never_overrules(ledger: Ledger) -> None:
    expired = await ledger.write(expire)
    assert expired is not None
    assert (expired.decision, expired.decided_by) == ("expired", ())
    assert await ledger.write(expire) == expired
    assert await ledger.write(cast(vote("ann"))) == AlreadyDecided(expired)
    other = RequestId("r2-4fa0c2")
    decided = await ledger.write(cast(vote("ann", request_id=other)))
    assert isinstance(decided, Decided)
    late = await ledger.write(
        lambda conn: close_request(conn, DEMO, JOB, other, verdict="voided", action_digest=ACTION, at=AT)
    )
    assert late == decided.decision
    assert await ledger.read(lambda conn: list_decisions(conn, DEMO, JOB)) == [expired, decided.decision]


async def test_of_an_expiry_and_racing_votes_one_verdict_stands(ledger: Ledger, ledger_url: str) -> None:
    other = Ledger.open(ledger_url)
    for number in range(25):
        request = RequestId(f"r{number}-4fa0c2")

        def voted(name: str, verb: DecisionVerb, request: RequestId = request) -> Callable[[Connection], Verdict]:
            ballot = vote(name, request_id=request, decision=verb)
            return lambda conn: verdict_of(cast_vote(conn, ballot, quorum=1))

        def expired(conn: Connection, request: RequestId = request) -> Verdict:
            return verdict_of(close_request(conn, DEMO, JOB, request, verdict="expired", action_digest=ACTION, at=AT))

        calls = [ledger.write(voted("ann", "approve")), other.write(voted("bob", "reject")), ledger.write(expired)]
        verdicts = await asyncio.gather(*(calls[(number + turn) % 3] for turn in range(3)))
        assert len(set(verdicts)) == 1
    await other.close()


def verdict_of(result: VoteResult | DecisionRow | None) -> Verdict:
    if isinstance(result, Decided | AlreadyDecided):
        return result.decision.decision
    assert isinstance(result, DecisionRow)
    return result.decision


async def test_the_first_stop_stands_for_ever(ledger: Ledger) -> None:
    assert await ledger.read(lambda conn: find_stop(conn, DEMO, JOB)) is None
    first = await ledger.write(stop("app"))
    assert first == StopRow(DEMO, JOB, AT, APP)
    assert await ledger.write(stop("operator", after=5)) == first
    assert await ledger.read(lambda conn: find_stop(conn, DEMO, JOB)) == first


async def test_there_is_no_stop_without_a_job(ledger: Ledger) -> None:
    unknown = await ledger.write(lambda conn: stop_job(conn, DEMO, JobId("unknown"), by=APP, at=AT))
    assert unknown is None


async def test_a_decision_permits_one_effect_for_ever(ledger: Ledger) -> None:
    def effect(name: str, request: str | None) -> Callable[[Connection], object]:
        row = {"effect_id": name, "workspace": DEMO, "job_id": JOB, "step": 1, "call": 0, "tool": "refunds.create"}
        row |= {"effect": "write", "action_digest": ACTION, "state": "intended", "epoch": 0, "attempt": 1}
        return lambda conn: conn.execute(insert(effects), row | {"request_id": request})

    await ledger.write(effect("eff_1", None))
    await ledger.write(effect("eff_2", None))
    await ledger.write(effect("eff_3", REQUEST))
    with pytest.raises(IntegrityError):
        await ledger.write(effect("eff_4", REQUEST))


async def test_a_vote_of_somebody_who_may_not_decide_any_more_does_not_count(ledger: Ledger) -> None:
    def without_ann(name: str) -> Callable[[Connection], VoteResult]:
        return lambda conn: cast_vote(conn, vote(name), quorum=2, may_decide=lambda one: one.principal != "ann")

    assert await ledger.write(cast(vote("ann"), quorum=2)) == Counted(1, 2)
    assert await ledger.write(without_ann("bob")) == Counted(1, 2)
    decided = await ledger.write(without_ann("cleo"))
    assert isinstance(decided, Decided)
    assert decided.decision.decided_by == ("bob", "cleo")
    votes = await ledger.read(lambda conn: list_votes(conn, DEMO, JOB, REQUEST))
    assert [one.principal for one in votes] == ["ann", "bob", "cleo"]


async def test_a_verdict_keeps_the_request_as_it_was_shown(ledger: Ledger) -> None:
    shown = {"request_id": REQUEST, "title": "Pay \u00e9"}
    await ledger.write(lambda conn: cast_vote(conn, vote("ann"), quorum=1, shown=shown))
    await ledger.write(lambda conn: cast_vote(conn, vote("ann"), quorum=1, shown={"title": "Another"}))
    kept = await ledger.read(lambda conn: find_decision(conn, DEMO, JOB, REQUEST))
    assert kept is not None
    assert kept.shown == shown


async def test_an_answer_is_the_same_by_its_value_and_not_by_what_python_thinks_equal(ledger: Ledger) -> None:
    ballot = vote("ann", decision="answer")
    first = await ledger.write(cast(ballot, answer=1))
    assert isinstance(first, Decided)
    assert await ledger.write(cast(ballot, answer=1.0)) == Decided(first.decision, repeated=True)
    assert await ledger.write(cast(ballot, answer=True)) == AlreadyDecided(first.decision)
