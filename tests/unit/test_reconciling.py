"""What came of an effect is written once: never sent, found out, or answered late; the first of them stands."""

import asyncio
from dataclasses import replace

import pytest

from gateway.calls.standing import STALE, Granted
from gateway.ledger.effects import (
    EffectState,
    Intent,
    Outcome,
    close_unsent,
    mark_not_sent,
    reconcile_effect,
)
from gateway.ledger.engine import Ledger
from tests.unit.ledger_rows import AT, DEMO, JOB
from tests.unit.test_effects import WRITE, admit, ask, end, epoch, state
from workflows.contract.ids import EffectId, JobId

AGAIN = replace(WRITE, effect="idempotent_write")


async def close(ledger: Ledger, intent: Intent = WRITE) -> bool:
    return await ledger.write(lambda conn: close_unsent(conn, intent, at=AT))


async def reconcile(ledger: Ledger, *, happened: bool, job: str = JOB) -> bool:
    return await ledger.write(
        lambda conn: reconcile_effect(
            conn, DEMO, JobId(job), WRITE.effect_id, happened=happened, outcome_ref=None, at=AT
        )
    )


@pytest.mark.parametrize("intent", [WRITE, AGAIN], ids=lambda intent: intent.effect)
async def test_what_was_never_sent_is_closed_and_a_late_attempt_gets_no_permit(ledger: Ledger, intent: Intent) -> None:
    await ledger.write(admit)
    assert await close(ledger, intent)
    assert await ask(ledger, intent) == STALE
    assert await state(ledger) == ("failed", 0, None)


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("intent", [WRITE, AGAIN], ids=lambda intent: intent.effect)
async def test_a_permit_that_was_taken_back_is_closed_for_good(ledger: Ledger, intent: Intent, closed: bool) -> None:
    """Not closed, the same attempt gets its permit: the mutant of the one above."""
    await ledger.write(admit)
    first = await epoch(ledger, intent)
    await ledger.write(lambda conn: mark_not_sent(conn, intent.effect_id, first))
    if closed:
        assert await close(ledger, intent)
        assert await ask(ledger, intent, first) == STALE
        assert await state(ledger) == ("failed", 1, None)
    else:
        assert isinstance(await ask(ledger, intent, first), Granted)


@pytest.mark.parametrize("outcome", [None, "unknown", "confirmed", "failed"])
async def test_what_may_have_left_is_not_closed(ledger: Ledger, outcome: Outcome | None) -> None:
    await ledger.write(admit)
    sent = await epoch(ledger)
    if outcome is not None:
        assert await end(ledger, sent, outcome)
    before = await state(ledger)
    assert not await close(ledger)
    assert await state(ledger) == before


async def test_of_a_permit_and_a_closing_at_the_same_time_one_wins(ledger: Ledger) -> None:
    await ledger.write(admit)
    for number in range(30):
        intent = replace(WRITE, effect_id=EffectId(f"eff_{number}"), call=number + 1)
        asked, closed = await asyncio.gather(ask(ledger, intent), close(ledger, intent))
        assert isinstance(asked, Granted) is not closed


@pytest.mark.parametrize(("happened", "known"), [(True, "reconciled"), (False, "failed")])
async def test_what_was_found_out_stands_against_an_answer_that_comes_late(
    ledger: Ledger, happened: bool, known: EffectState
) -> None:
    await ledger.write(admit)
    sent = await epoch(ledger)
    await end(ledger, sent, "unknown")
    assert await reconcile(ledger, happened=happened)
    assert not await end(ledger, sent, "confirmed")
    assert not await reconcile(ledger, happened=not happened)
    assert (await state(ledger))[0] == known


@pytest.mark.parametrize("answer", ["confirmed", "failed"])
async def test_an_answer_that_was_first_stands_against_what_is_found_out(ledger: Ledger, answer: Outcome) -> None:
    await ledger.write(admit)
    sent = await epoch(ledger)
    await end(ledger, sent, "unknown")
    assert await end(ledger, sent, answer)
    assert not await reconcile(ledger, happened=answer == "failed")
    assert (await state(ledger))[0] == answer


async def test_an_effect_of_another_job_is_not_settled(ledger: Ledger) -> None:
    await ledger.write(admit)
    await epoch(ledger)
    assert not await reconcile(ledger, happened=True, job="another")
    assert (await state(ledger))[0] == "sent"
