"""Callbacks in the ledger: one answer a call, in time, and what it says of a write, all in one transaction."""

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

import gateway.ledger.callbacks
from gateway.ledger.callbacks import (
    CallbackRow,
    Late,
    NewCallback,
    OfCall,
    answer_callback,
    callbacks_of,
    close_call,
    find_callback,
    open_callback,
    standing_callback,
    take_answer,
    untold_answers,
)
from gateway.ledger.effects import Intent, find_effect, mark_sent
from gateway.ledger.engine import Ledger
from gateway.ledger.receipts import reserve
from gateway.ledger.stops import stop_job
from tests.unit.ledger_rows import ACTION, APP, AT, DEMO, JOB, SECOND, receipt
from workflows.contract.ids import BlobRef, EffectId, ToolName, sha256_of

CALL = OfCall(DEMO, JOB, 3, 0)
EFFECT = EffectId("eff_1")
RESULT = BlobRef(sha256_of(b"result"))
OTHER = BlobRef(sha256_of(b"another result"))


def token(name: str, **changed: Any) -> NewCallback:
    new = NewCallback(
        **vars(CALL),
        token_hash=name,
        attempt=1,
        tool=ToolName("t"),
        effect_id=None,
        epoch=None,
        opened_at=AT,
        expires_at=AT + timedelta(seconds=60),
    )
    return replace(new, **changed)


@pytest.fixture(autouse=True)
async def job(ledger: Ledger) -> None:
    await ledger.write(lambda conn: reserve(conn, receipt()))


async def opened(ledger: Ledger, *names: str, **changed: Any) -> None:
    for name in names:
        await ledger.write(lambda conn, name=name: open_callback(conn, token(name, **changed)))


async def sent(ledger: Ledger, *, effect: Any = "write", seen: int = 0) -> None:
    intent = Intent(EFFECT, DEMO, JOB, 3, 0, ToolName("t"), effect, ACTION, None, 1)
    await ledger.write(lambda conn: mark_sent(conn, intent, seen_epoch=seen, at=AT))


async def answer(ledger: Ledger, name: str, *, after_s: int = 1, **said: Any) -> Late | None:
    row = await ledger.read(lambda conn: find_callback(conn, name))
    assert row is not None
    said = {"outcome": "ok", "result_ref": RESULT, **said}
    return await ledger.write(lambda conn: answer_callback(conn, row, at=AT + after_s * SECOND, **said))


async def take(ledger: Ledger, *, close: bool = False, after_s: int = 2) -> CallbackRow | None:
    return await ledger.write(lambda conn: (close_call if close else take_answer)(conn, CALL, AT + after_s * SECOND))


async def effect_state(ledger: Ledger) -> tuple[str, BlobRef | None]:
    row = await ledger.read(lambda conn: find_effect(conn, EFFECT))
    assert row is not None
    return row.state, row.outcome_ref


async def test_an_answer_is_taken_and_stays_the_answer(ledger: Ledger) -> None:
    await opened(ledger, "a")
    assert await take(ledger) is None
    assert await answer(ledger, "a") is None
    for _ in range(2):
        taken = await take(ledger)
        assert taken is not None
        assert (taken.outcome, taken.result_ref) == ("ok", RESULT)
    closed = await take(ledger, close=True)
    assert closed is not None
    assert closed.result_ref == RESULT


async def test_a_call_has_one_answer_whichever_token_brings_it(ledger: Ledger) -> None:
    await opened(ledger, "a", "b")
    assert await answer(ledger, "b") is None
    assert [await answer(ledger, name, result_ref=OTHER) for name in ("a", "b")] == ["answered", "answered"]
    taken = await take(ledger)
    assert taken is not None
    assert taken.result_ref == RESULT
    assert [await answer(ledger, name, after_s=3) for name in ("a", "b")] == ["answered", "answered"]


async def test_who_lost_a_race_to_an_answer_that_was_taken_is_told_that_there_is_one(ledger: Ledger) -> None:
    await sent(ledger)
    await opened(ledger, "a", effect_id=EFFECT, epoch=1)
    before = await ledger.read(lambda conn: find_callback(conn, "a"))
    assert before is not None
    await answer(ledger, "a")
    await take(ledger)
    late = await ledger.write(
        lambda conn: answer_callback(conn, before, outcome="error", result_ref=OTHER, at=AT + 9 * SECOND)
    )
    assert (late, await effect_state(ledger)) == ("answered", ("confirmed", RESULT))


async def test_of_thirty_answers_at_once_one_counts(ledger: Ledger) -> None:
    await opened(ledger, "a", "b")
    said = await asyncio.gather(*(answer(ledger, "ab"[n % 2]) for n in range(30)))
    assert sorted(map(str, said)) == ["None", *["answered"] * 29]


@pytest.mark.parametrize("after_s", [60, 61])
async def test_nothing_is_answered_once_it_has_expired(ledger: Ledger, after_s: int) -> None:
    await opened(ledger, "a")
    assert await answer(ledger, "a", after_s=after_s) == "over"
    assert await answer(ledger, "a", after_s=59) is None


async def test_nothing_is_answered_after_a_stop_or_a_close(ledger: Ledger) -> None:
    await opened(ledger, "a")
    await ledger.write(lambda conn: stop_job(conn, DEMO, JOB, by=APP, at=AT))
    assert await answer(ledger, "a") == "over"
    await opened(ledger, "c", step=4)
    assert await take(ledger, close=True) is None
    assert await answer(ledger, "a") == "over"
    row = await ledger.read(lambda conn: find_callback(conn, "a"))
    assert row is not None
    assert (row.answered_at, row.outcome, row.result_ref) == (None, None, None)


async def test_a_ledger_that_overlooked_the_stop_would_take_the_answer(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutant of the test above: it is the stop that keeps the answer out."""

    def none(*_: object) -> None:
        return None

    monkeypatch.setattr(gateway.ledger.callbacks, "find_stop", none)
    await opened(ledger, "a")
    await ledger.write(lambda conn: stop_job(conn, DEMO, JOB, by=APP, at=AT))
    assert await answer(ledger, "a") is None


@pytest.mark.parametrize(("outcome", "state"), [("ok", "confirmed"), ("error", "failed")])
async def test_an_answer_settles_the_write_it_tells_of(ledger: Ledger, outcome: str, state: str) -> None:
    await sent(ledger)
    await opened(ledger, "a", effect_id=EFFECT, epoch=1)
    assert await answer(ledger, "a", outcome=outcome) is None
    assert await effect_state(ledger) == (state, RESULT)
    assert await take(ledger, close=True) is not None
    assert await effect_state(ledger) == (state, RESULT)


async def test_a_write_whose_wait_is_closed_without_an_answer_is_unknown(ledger: Ledger) -> None:
    await sent(ledger)
    await opened(ledger, "a", effect_id=EFFECT, epoch=1)
    assert await take(ledger, close=True) is None
    assert await effect_state(ledger) == ("unknown", None)


async def test_a_token_of_an_earlier_attempt_tells_of_the_same_effect(ledger: Ledger) -> None:
    await sent(ledger, effect="idempotent_write")
    await opened(ledger, "a", effect_id=EFFECT, epoch=1)
    await sent(ledger, effect="idempotent_write", seen=1)
    await opened(ledger, "b", effect_id=EFFECT, epoch=2)
    assert await answer(ledger, "a") is None
    assert await effect_state(ledger) == ("confirmed", RESULT)
    assert await answer(ledger, "b") == "answered"


async def test_a_token_of_a_write_that_never_left_answers_nothing(ledger: Ledger) -> None:
    await opened(ledger, "a", effect_id=EFFECT, epoch=1)
    assert await answer(ledger, "a") == "over"


async def test_a_call_that_a_reset_sends_again_starts_afresh(ledger: Ledger) -> None:
    await opened(ledger, "a")
    await answer(ledger, "a")
    await take(ledger)
    await opened(ledger, "b", opened_at=AT + 5 * SECOND)
    assert await take(ledger, after_s=6) is None
    assert await answer(ledger, "b", after_s=7, result_ref=OTHER) is None
    taken = await take(ledger, after_s=8)
    assert taken is not None
    assert taken.result_ref == OTHER
    assert [row.token_hash for row in await ledger.read(lambda conn: callbacks_of(conn, CALL))] == ["a", "b"]


async def test_what_the_job_was_not_told_of_is_listed_until_it_is_taken(ledger: Ledger) -> None:
    async def untold(after_s: int) -> list[str]:
        rows = await ledger.read(lambda conn: untold_answers(conn, before=AT + after_s * SECOND, limit=9))
        return [row.token_hash for row in rows]

    await opened(ledger, "a")
    assert await untold(9) == []
    await answer(ledger, "a", after_s=1)
    assert [await untold(1), await untold(2)] == [[], ["a"]]
    await take(ledger)
    assert await untold(9) == []


async def test_the_standing_token_is_the_youngest_that_is_not_closed(ledger: Ledger) -> None:
    assert await ledger.read(lambda conn: standing_callback(conn, CALL)) is None
    await opened(ledger, "a")
    await opened(ledger, "b", opened_at=AT + SECOND)
    standing = await ledger.read(lambda conn: standing_callback(conn, CALL))
    assert standing is not None
    assert standing.token_hash == "b"
    await take(ledger, close=True)
    assert await ledger.read(lambda conn: standing_callback(conn, CALL)) is None
