"""A job calls only while its authority stands: taken away it stays away, and who approved must still be allowed to."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from sqlalchemy import Connection

from gateway.calls.standing import Denied, Granted, examine
from gateway.changes import GRANT_GONE, KEY_GONE, accept_job, withdraw_authority, withdraw_credential
from gateway.ledger.authorities import find_authority, insert_authority, open_authorities
from gateway.ledger.catalog import withdraw_version
from gateway.ledger.decisions import cast_vote
from gateway.ledger.engine import Ledger
from gateway.ledger.grants import insert_grant, revoke_grant, revoke_principal
from gateway.ledger.journal import latest_change
from gateway.ledger.receipts import find_receipt, reserve
from tests.unit.ledger_rows import AT, DEMO, JOB, OPERATOR, REFUND, SECOND, authority, grant, receipt, version, vote
from tests.unit.test_effects import APP, ASKED, ME, admit, ask
from workflows.contract.errors import StepCode
from workflows.contract.ids import PrincipalId
from workflows.contract.steps import Hint

LATER = AT + SECOND


def revoke(conn: Connection) -> None:
    revoke_grant(conn, DEMO, "g-1", by=OPERATOR, at=LATER)
    withdraw_authority(conn, DEMO, APP, by=OPERATOR, at=LATER)


async def revoked(ledger: Ledger, job: str = JOB) -> str | None:
    row = await ledger.read(lambda conn: find_authority(conn, DEMO, authority(job).job_id))
    assert row is not None
    return row.revoked_reason


async def test_a_revoked_grant_refuses_the_next_call_and_granting_again_brings_nothing_back(ledger: Ledger) -> None:
    await ledger.write(admit)
    await ledger.write(revoke)
    await ledger.write(lambda conn: insert_grant(conn, grant("g-again", at=LATER)))
    assert await ask(ledger, now=LATER + SECOND) == Denied(StepCode.AUTHORITY_REVOKED, GRANT_GONE)


async def test_a_job_that_another_grant_covers_goes_on(ledger: Ledger) -> None:
    await ledger.write(admit)
    await ledger.write(lambda conn: insert_grant(conn, grant("g-second")))
    await ledger.write(revoke)
    assert await revoked(ledger) is None
    assert isinstance(await ask(ledger), Granted)


async def test_a_key_takes_the_jobs_with_it_that_it_submitted_and_no_others(ledger: Ledger) -> None:
    await ledger.write(admit)
    for job, key in (("by-key", "key-1"), ("by-other", "key-2"), ("by-token", None)):
        await ledger.write(lambda conn, j=job: reserve(conn, receipt(j)))
        await ledger.write(lambda conn, j=job, k=key: insert_authority(conn, authority(j, credential=k)))
    taken = await ledger.write(lambda conn: withdraw_credential(conn, DEMO, "key-1", by=OPERATOR, at=LATER))
    assert taken == ["by-key"]
    assert await revoked(ledger, "by-key") == KEY_GONE
    assert [await revoked(ledger, job) for job in ("by-other", "by-token", JOB)] == [None, None, None]


async def test_somebody_who_may_not_decide_any_more_approves_nothing(ledger: Ledger) -> None:
    await ledger.write(admit)
    await ledger.write(lambda conn: cast_vote(conn, vote("ann"), quorum=1))
    await ledger.write(lambda conn: revoke_principal(conn, DEMO, PrincipalId("ann"), by=OPERATOR, at=LATER))
    refused = await ask(ledger, ASKED, now=LATER)
    assert isinstance(refused, Denied)
    assert refused.code is StepCode.AUTHORITY_REVOKED


@pytest.mark.parametrize(("given_again", "runs"), [(-SECOND, True), (timedelta(0), True), (SECOND, False)])
async def test_an_approval_is_not_brought_back_by_granting_again(
    ledger: Ledger, given_again: timedelta, runs: bool
) -> None:
    """Another grant that was there before the first one went keeps it."""
    ann = PrincipalId("ann")
    await ledger.write(admit)
    await ledger.write(lambda conn: cast_vote(conn, vote("ann"), quorum=1))
    await ledger.write(lambda conn: revoke_principal(conn, DEMO, ann, by=OPERATOR, at=LATER))
    again = grant("g-ann-again", principal=ann, actions=("jobs:decide",), at=LATER + given_again)
    await ledger.write(lambda conn: insert_grant(conn, again))
    answer = await ask(ledger, ASKED, now=LATER + 2 * SECOND)
    assert isinstance(answer, Granted) is runs
    assert runs or (isinstance(answer, Denied) and answer.code is StepCode.AUTHORITY_REVOKED)


async def test_a_withdrawn_version_calls_nothing_more(ledger: Ledger) -> None:
    await ledger.write(admit)
    await ledger.write(lambda conn: withdraw_version(conn, DEMO, REFUND, "1.0.0", reason="bad", by="op", at=LATER))
    refused = await ask(ledger)
    assert isinstance(refused, Denied)
    assert refused.code is StepCode.PHASE_CLOSED


async def test_an_authority_that_ran_out_is_renewed_by_a_call_that_its_grants_allow(ledger: Ledger) -> None:
    await ledger.write(admit)
    late = AT + timedelta(minutes=6)
    assert isinstance(await ask(ledger, now=late), Granted)
    row = await ledger.read(lambda conn: find_authority(conn, DEMO, JOB))
    assert row is not None
    assert row.expires_at == late + timedelta(minutes=5)


async def test_a_job_without_an_authority_calls_nothing(ledger: Ledger) -> None:
    await ledger.write(admit)
    await ledger.write(lambda conn: reserve(conn, receipt("k-2", plugin_digest=version().digest)))
    other = type(ME)(DEMO, receipt("k-2").job_id, "run-1", "7", 1)
    found = await ledger.read(lambda conn: examine(conn, other, LATER))
    assert isinstance(found, Denied)
    assert found.code is StepCode.NO_RECEIPT


def nothing(_conn: Connection) -> None: ...


def grant_anew(conn: Connection) -> None:
    insert_grant(conn, grant("g-anew", at=LATER + SECOND))


def revoke_elsewhere(conn: Connection) -> None:
    insert_grant(conn, grant("g-ann", principal=PrincipalId("cho")))
    revoke_principal(conn, DEMO, PrincipalId("cho"), by=OPERATOR, at=LATER)


@pytest.mark.parametrize(
    ("meanwhile", "after", "told", "reason"),
    [
        (nothing, nothing, False, None),
        (revoke, nothing, True, GRANT_GONE),
        (revoke, grant_anew, True, GRANT_GONE),
        (revoke_elsewhere, nothing, False, None),
    ],
)
async def test_a_job_admitted_at_the_moment_of_a_change_finds_it_when_it_is_accepted(
    ledger: Ledger,
    meanwhile: Callable[[Connection], None],
    after: Callable[[Connection], None],
    told: bool,
    reason: str | None,
) -> None:
    """Admission has looked; then something changes and is delivered to whoever is open; then the key is reserved."""
    await ledger.write(admit)
    seen = await ledger.read(lambda conn: latest_change(conn, DEMO))
    await ledger.write(meanwhile)
    await ledger.write(after)
    await ledger.write(lambda conn: reserve(conn, receipt("k-new")))
    await ledger.write(lambda conn: insert_authority(conn, authority("k-new", seen_change=seen)))

    def record(conn: Connection) -> frozenset[Hint]:
        row = find_receipt(conn, DEMO, receipt("k-new").job_id)
        assert row is not None
        return accept_job(conn, row, LATER + 2 * SECOND)

    assert (Hint.AUTHORITY in await ledger.write(record)) is told
    assert await revoked(ledger, "k-new") == reason
    assert "k-new" in [row.job_id for row in await ledger.read(lambda conn: open_authorities(conn, DEMO))]
