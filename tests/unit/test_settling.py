"""Of words on what came of a write one counts, whoever gives them at the same moment; everybody is told which."""

import asyncio
from dataclasses import replace

import pytest
from sqlalchemy import Connection

from gateway.ledger.effects import EffectRow, Intent, find_effect, mark_sent, record_outcome
from gateway.ledger.engine import Ledger
from gateway.ledger.grants import insert_grant, revoke_grant
from gateway.ledger.journal import read_audit
from gateway.ledger.receipts import ReceiptRow, accept, find_receipt, reserve
from gateway.scopes import Action, Caller
from gateway.settling import Settled, SettlementAnswer, SettlementIn, settle
from tests.unit.ledger_rows import ACTION, AT, DEMO, JOB, SECOND, grant, receipt
from workflows.contract.errors import ProblemCode, Refused
from workflows.contract.ids import EffectId, PrincipalId, ToolName

RACES = 100
PEOPLE: dict[str, Settled] = {"ann": "happened", "bob": "did_not_happen"}
WRITE = Intent(EffectId("eff_0"), DEMO, JOB, 1, 1, ToolName("pay"), "write", ACTION, None, 1)


def caller(principal: str) -> Caller:
    return Caller(PrincipalId(principal), DEMO, frozenset({Action.JOBS_DECIDE}), frozenset(), "t-1")


async def in_doubt(ledger: Ledger, effects: int = 1) -> tuple[ReceiptRow, list[EffectRow]]:
    """A job with so many writes of which nobody knows, and two people who may decide."""

    def put(conn: Connection) -> tuple[ReceiptRow | None, list[EffectRow | None]]:
        reserve(conn, receipt())
        accept(conn, DEMO, JOB, AT)
        for person in PEOPLE:
            insert_grant(conn, grant(f"g-{person}", principal=PrincipalId(person), actions=("jobs:decide",)))
        intents = [replace(WRITE, effect_id=EffectId(f"eff_{n}"), call=n) for n in range(effects)]
        for intent in intents:
            mark_sent(conn, intent, seen_epoch=0, at=AT)
            record_outcome(conn, intent.effect_id, 1, "unknown", None, at=AT)
        return find_receipt(conn, DEMO, JOB), [find_effect(conn, intent.effect_id) for intent in intents]

    job, rows = await ledger.write(put)
    assert job is not None
    return job, [row for row in rows if row is not None]


async def say(
    ledger: Ledger, job: ReceiptRow, effect: EffectRow, who: str, answer: Settled
) -> SettlementAnswer | Refused:
    try:
        return await ledger.write(lambda conn: settle(conn, caller(who), job, effect, SettlementIn(answer=answer)))
    except Refused as refused:
        return refused


async def test_of_opposite_words_at_once_one_stands_and_both_are_told_which(ledger: Ledger) -> None:
    job, effects = await in_doubt(ledger, RACES)
    for effect in effects:
        told = await asyncio.gather(*(say(ledger, job, effect, who, answer) for who, answer in PEOPLE.items()))
        [stands] = [one for one in told if isinstance(one, SettlementAnswer)]
        [late] = [one for one in told if isinstance(one, Refused)]
        assert (late.code, late.extras["record"]) == (ProblemCode.ALREADY_DECIDED, stands.model_dump(mode="json"))
        row = await ledger.read(lambda conn, of=effect: find_effect(conn, of.effect_id))
        assert row is not None
        [winner] = stands.decided_by
        assert (row.state, stands.state) == ({"ann": "reconciled", "bob": "failed"}[winner],) * 2
    lines = await ledger.read(lambda conn: read_audit(conn, DEMO, after=0, limit=1000))
    assert sum(line.action == "effect.settled" for line in lines) == RACES


async def test_the_same_word_again_is_the_same_answer_and_no_line_of_audit(ledger: Ledger) -> None:
    job, [effect] = await in_doubt(ledger)
    first = await say(ledger, job, effect, "ann", "happened")
    assert isinstance(first, SettlementAnswer)
    assert await asyncio.gather(*(say(ledger, job, effect, "ann", "happened") for _ in range(10))) == [first] * 10
    lines = await ledger.read(lambda conn: read_audit(conn, DEMO, after=0, limit=1000))
    assert [(line.actor, line.subject, line.detail["answer"]) for line in lines if line.action == "effect.settled"] == [
        ("ann", f"{JOB}/{effect.effect_id}", "happened")
    ]


@pytest.mark.parametrize("known", ["confirmed", "failed"])
async def test_an_answer_of_the_tool_that_was_first_stands(ledger: Ledger, known: str) -> None:
    job, [effect] = await in_doubt(ledger)
    outcome = "confirmed" if known == "confirmed" else "failed"
    await ledger.write(lambda conn: record_outcome(conn, effect.effect_id, 1, outcome, None, at=AT))
    late = await say(ledger, job, effect, "ann", "happened")
    assert isinstance(late, Refused)
    record = late.extras["record"]
    assert (late.code, record["state"], record["decided_by"]) == (ProblemCode.ALREADY_DECIDED, known, [])


async def test_one_that_comes_after_a_word_counts_no_more(ledger: Ledger) -> None:
    job, [effect] = await in_doubt(ledger)
    assert isinstance(await say(ledger, job, effect, "bob", "did_not_happen"), SettlementAnswer)
    at = AT + SECOND
    assert not await ledger.write(lambda conn: record_outcome(conn, effect.effect_id, 1, "confirmed", None, at=at))
    assert await ledger.write(lambda conn: mark_sent(conn, WRITE, seen_epoch=1, at=at)) is None


async def test_who_lost_the_grant_meanwhile_says_nothing(ledger: Ledger) -> None:
    job, [effect] = await in_doubt(ledger)
    await ledger.write(lambda conn: revoke_grant(conn, DEMO, "g-ann", by="operator", at=AT))
    refused = await say(ledger, job, effect, "ann", "happened")
    assert isinstance(refused, Refused)
    assert refused.code is ProblemCode.NOT_PERMITTED
    row = await ledger.read(lambda conn: find_effect(conn, effect.effect_id))
    assert row == effect
    assert isinstance(await say(ledger, job, effect, "bob", "happened"), SettlementAnswer)
