"""A write gets a permit only where everything holds now, once, and what came of it is never lost or overwritten."""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from sqlalchemy import Connection

from gateway.calls.attempts import Attempt
from gateway.calls.standing import Denied, Granted, permit
from gateway.ledger.authorities import insert_authority
from gateway.ledger.catalog import insert_plugin_version
from gateway.ledger.decisions import cast_vote, close_request
from gateway.ledger.effects import (
    EffectState,
    Intent,
    Outcome,
    close_unsent,
    count_sent_after_stop,
    find_effect,
    mark_not_sent,
    mark_sent,
    open_effects,
    record_outcome,
)
from gateway.ledger.engine import Ledger
from gateway.ledger.grants import insert_grant, revoke_principal
from gateway.ledger.phases import insert_promotion
from gateway.ledger.receipts import accept, reserve
from gateway.ledger.stops import stop_job
from tests.unit.ledger_rows import (
    ACTION,
    APP,
    AT,
    DEMO,
    JOB,
    OPERATOR,
    REQUEST,
    SECOND,
    authority,
    grant,
    promotion,
    receipt,
    version,
    vote,
)
from workflows.contract.errors import StepCode
from workflows.contract.ids import BlobRef, EffectId, PrincipalId, RequestId, ToolName, sha256_of

ME = Attempt(DEMO, JOB, "run-1", "7", 1)
REF = BlobRef(sha256_of(b"outcome"))
WRITE = Intent(
    effect_id=EffectId("eff_1"),
    workspace=DEMO,
    job_id=JOB,
    step=2,
    call=1,
    tool=ToolName("refunds.create"),
    effect="write",
    action_digest=ACTION,
    request_id=None,
    attempt=1,
)
ASKED = replace(WRITE, request_id=REQUEST)


def admit(conn: Connection, **receipt_columns: Any) -> None:
    """A live job of a live plugin whose principal may submit, and two people who may decide."""
    bundle = version()
    insert_plugin_version(conn, bundle)
    insert_promotion(conn, promotion("p-version", digest=bundle.digest))
    insert_promotion(conn, promotion("p-runtime", workspace=None, plugin=None, version=None, digest=None))
    insert_grant(conn, grant())
    reserve(conn, receipt(plugin_digest=bundle.digest, **receipt_columns))
    insert_authority(conn, authority(receipt_columns.get("job_id", JOB)))
    accept(conn, DEMO, JOB, AT)
    for person in ("ann", "bob"):
        insert_grant(conn, grant(f"g-{person}", principal=PrincipalId(person), actions=("jobs:decide",)))


async def ask(ledger: Ledger, intent: Intent = WRITE, seen: int = 0, now: datetime = AT + SECOND) -> Granted | Denied:
    return await ledger.write(lambda conn: permit(conn, ME, intent, seen, now=now))


async def epoch(ledger: Ledger, intent: Intent = WRITE, seen: int = 0) -> int:
    given = await ask(ledger, intent, seen)
    assert isinstance(given, Granted), given
    return given.epoch


async def state(ledger: Ledger, effect: str = WRITE.effect_id) -> tuple[EffectState, int, str | None]:
    row = await ledger.read(lambda conn: find_effect(conn, EffectId(effect)))
    assert row is not None
    return row.state, row.epoch, row.outcome_ref


async def end(ledger: Ledger, at_epoch: int, outcome: Outcome, ref: BlobRef | None = None) -> bool:
    return await ledger.write(lambda conn: record_outcome(conn, WRITE.effect_id, at_epoch, outcome, ref, at=AT))


async def test_a_permit_is_epoch_one_and_its_outcome_is_kept(ledger: Ledger) -> None:
    await ledger.write(admit)
    assert await epoch(ledger) == 1
    assert await state(ledger) == ("sent", 1, None)
    assert await end(ledger, 1, "confirmed", REF)
    assert await state(ledger) == ("confirmed", 1, REF)


async def test_an_open_permit_is_in_flight_until_its_outcome(ledger: Ledger) -> None:
    await ledger.write(admit)
    await epoch(ledger)
    (open_one,) = await ledger.read(lambda conn: open_effects(conn, DEMO, JOB))
    assert (open_one.effect_id, open_one.tool, open_one.sent_at) == ("eff_1", "refunds.create", AT + SECOND)
    await end(ledger, 1, "unknown")
    assert await ledger.read(lambda conn: open_effects(conn, DEMO, JOB)) == []


@pytest.mark.parametrize("known", ["sent", "confirmed", "failed", "unknown"])
async def test_a_write_is_never_sent_twice(ledger: Ledger, known: str) -> None:
    await ledger.write(admit)
    await epoch(ledger)
    if known != "sent":
        await end(ledger, 1, known)  # pyright: ignore[reportArgumentType]  # the parameters are outcomes
    for seen in (0, 1, 2):
        assert await ask(ledger, seen=seen) == Denied(
            StepCode.STALE, "This attempt is not the current one any more; nothing was sent."
        )
    assert (await state(ledger))[:2] == (known, 1)


async def test_an_idempotent_write_rises_in_epoch_until_its_outcome_is_known(ledger: Ledger) -> None:
    intent = replace(WRITE, effect="idempotent_write")
    await ledger.write(admit)
    assert await epoch(ledger, intent) == 1
    assert await epoch(ledger, intent, seen=1) == 2
    await end(ledger, 2, "unknown")
    assert await epoch(ledger, intent, seen=2) == 3
    await end(ledger, 3, "confirmed", REF)
    assert isinstance(await ask(ledger, intent, seen=3), Denied)


async def test_an_overtaken_attempt_records_nothing(ledger: Ledger) -> None:
    intent = replace(WRITE, effect="idempotent_write")
    await ledger.write(admit)
    await epoch(ledger, intent)
    await epoch(ledger, intent, seen=1)
    assert not await end(ledger, 1, "failed")
    assert await state(ledger) == ("sent", 2, None)


async def test_an_unknown_outcome_may_become_known_and_a_known_one_stays(ledger: Ledger) -> None:
    await ledger.write(admit)
    await epoch(ledger)
    assert await end(ledger, 1, "unknown")
    assert await end(ledger, 1, "confirmed", REF)
    assert not await end(ledger, 1, "failed")
    assert await state(ledger) == ("confirmed", 1, REF)


async def test_a_permit_given_back_may_be_taken_again(ledger: Ledger) -> None:
    await ledger.write(admit)
    await epoch(ledger)
    assert await ledger.write(lambda conn: mark_not_sent(conn, WRITE.effect_id, 1))
    assert await state(ledger) == ("intended", 1, None)
    assert not await end(ledger, 1, "confirmed")
    assert await epoch(ledger, seen=1) == 2


async def test_a_permit_given_back_does_not_unsay_what_an_earlier_epoch_may_have_sent(ledger: Ledger) -> None:
    """Else the effect would be closed as one that surely did not happen, and a retry would repeat it."""
    await ledger.write(admit)
    again = replace(WRITE, effect="idempotent_write")
    assert await epoch(ledger, again) == 1
    assert await end(ledger, 1, "unknown")
    assert await epoch(ledger, again, seen=1) == 2
    assert await ledger.write(lambda conn: mark_not_sent(conn, WRITE.effect_id, 2))
    assert await state(ledger) == ("unknown", 2, None)
    assert not await ledger.write(lambda conn: close_unsent(conn, again, at=AT))
    assert await epoch(ledger, again, seen=2) == 3


async def test_of_two_permits_on_the_same_view_one_is_given(ledger: Ledger) -> None:
    await ledger.write(admit)

    def both(conn: Connection) -> list[int | None]:
        return [mark_sent(conn, WRITE, seen_epoch=0, at=AT) for _ in range(2)]

    assert await ledger.write(both) == [1, None]


Change = Callable[[Connection], object]
REFUSALS: dict[str, tuple[StepCode, Change]] = {
    "retried": (StepCode.AUTHORITY_REVOKED, lambda c: reserve(c, receipt("k-again", retry_of=JOB, line=JOB))),
    "stopped": (StepCode.STOPPED, lambda c: stop_job(c, DEMO, JOB, by=APP, at=AT)),
    "grant revoked": (StepCode.AUTHORITY_REVOKED, lambda c: revoke_principal(c, DEMO, APP, by=OPERATOR, at=AT)),
    "version demoted": (
        StepCode.PHASE_CLOSED,
        lambda c: insert_promotion(c, promotion("p-down", phase="stateful_noop")),
    ),
    "runtime demoted": (
        StepCode.PHASE_CLOSED,
        lambda c: insert_promotion(
            c, promotion("p-off", workspace=None, plugin=None, version=None, digest=None, phase="blocked_noop")
        ),
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
async def test_what_changed_after_admission_refuses_the_permit(ledger: Ledger, case: str) -> None:
    code, change = REFUSALS[case]
    await ledger.write(admit)
    await ledger.write(change)
    refused = await ask(ledger)
    assert isinstance(refused, Denied)
    assert refused.code is code
    assert await ledger.read(lambda conn: find_effect(conn, WRITE.effect_id)) is None


async def test_nothing_is_sent_at_or_after_the_deadline(ledger: Ledger) -> None:
    await ledger.write(lambda conn: admit(conn, deadline_at=AT + SECOND))
    refused = await ask(ledger, now=AT + SECOND)
    assert isinstance(refused, Denied)
    assert refused.code is StepCode.DEADLINE


@pytest.mark.parametrize("case", ["no receipt", "not accepted", "dry run"])
async def test_without_an_accepted_live_receipt_nothing_is_sent(ledger: Ledger, case: str) -> None:
    if case == "dry run":
        await ledger.write(lambda conn: admit(conn, mode="dry_run"))
    elif case == "not accepted":
        await ledger.write(lambda conn: admit(conn, job_id="k-other"))
        await ledger.write(lambda conn: reserve(conn, receipt(plugin_digest=version().digest)))
        await ledger.write(lambda conn: insert_authority(conn, authority()))
    refused = await ask(ledger)
    assert isinstance(refused, Denied)
    assert refused.code is StepCode.NO_RECEIPT


async def test_an_asked_write_needs_the_approval_of_this_very_action(ledger: Ledger) -> None:
    await ledger.write(admit)
    refused = await ask(ledger, ASKED)
    assert refused == Denied(StepCode.REJECTED, "No approval covers this call.")
    other = vote("ann", action_digest=sha256_of(b"something else"))
    await ledger.write(lambda conn: cast_vote(conn, other, quorum=1))
    assert await ask(ledger, ASKED) == refused


@pytest.mark.parametrize("verdict", ["reject", "expired", "voided"])
async def test_no_other_verdict_is_an_approval(ledger: Ledger, verdict: str) -> None:
    await ledger.write(admit)

    def decide(conn: Connection) -> object:
        if verdict == "reject":
            return cast_vote(conn, vote("ann", decision="reject"), quorum=1)
        closed: Any = verdict
        return close_request(conn, DEMO, JOB, REQUEST, verdict=closed, action_digest=ACTION, at=AT)

    await ledger.write(decide)
    assert await ask(ledger, ASKED) == Denied(StepCode.REJECTED, "No approval covers this call.")


async def test_one_of_two_approvals_is_none(ledger: Ledger) -> None:
    await ledger.write(admit)
    await ledger.write(lambda conn: cast_vote(conn, vote("ann"), quorum=2))
    assert isinstance(await ask(ledger, ASKED), Denied)
    await ledger.write(lambda conn: cast_vote(conn, vote("bob"), quorum=2))
    assert await epoch(ledger, ASKED) == 1


async def test_an_approval_permits_one_effect_for_ever(ledger: Ledger) -> None:
    await ledger.write(admit)
    await ledger.write(lambda conn: cast_vote(conn, vote("ann"), quorum=1))
    assert await epoch(ledger, ASKED) == 1
    twin = replace(ASKED, effect_id=EffectId("eff_2"), step=4)
    assert await ask(ledger, twin) == Denied(StepCode.REJECTED, "The approval was used for another effect.")
    assert await ledger.read(lambda conn: find_effect(conn, twin.effect_id)) is None
    again = replace(twin, request_id=RequestId("r2-4fa0c2"))
    await ledger.write(lambda conn: cast_vote(conn, vote("ann", request_id=again.request_id), quorum=1))
    assert await epoch(ledger, again) == 1


@pytest.mark.parametrize(("stopped", "late"), [(AT, 1), (AT + 2 * SECOND, 0)])
async def test_a_write_sent_after_its_jobs_stop_is_counted(ledger: Ledger, stopped: datetime, late: int) -> None:
    await ledger.write(admit)
    await epoch(ledger)
    await ledger.write(lambda conn: stop_job(conn, DEMO, JOB, by=APP, at=stopped))
    assert await ledger.read(count_sent_after_stop) == late
