"""A retry is told from every other request, knows its line of jobs, and what took effect anywhere in it."""

import pytest
from sqlalchemy import Connection

from gateway.actions import action_digest
from gateway.jobrequest import RetryIn, fingerprint_of_retry
from gateway.ledger.authorities import insert_authority, mark_ended
from gateway.ledger.effects import EffectState, Intent, mark_sent, reconcile_effect, record_outcome
from gateway.ledger.engine import Ledger
from gateway.ledger.lines import in_doubt_in_line, newer_in_line, open_in_line, people_of_line
from gateway.ledger.receipts import ReceiptRow, find_receipt, mark_refused, reserve
from gateway.retrying import again, done_before
from tests.unit.ledger_rows import APP, AT, DEMO, JOB, authority, receipt
from workflows.contract.ids import EffectId, JobId, PrincipalId, ToolName, sha256_of

PAY = ToolName("pay")
ARGS = {"n": 1}


def row(conn: Connection, job_id: str) -> ReceiptRow:
    found = find_receipt(conn, DEMO, JobId(job_id))
    assert found is not None
    return found


def sent(conn: Connection, job_id: str, state: EffectState, args: dict[str, int] = ARGS) -> None:
    """An effect of this job that paid, and what is known of it."""
    effect = EffectId(f"eff_{job_id}")
    digest = action_digest(PAY, row(conn, job_id).plugin_digest, dict(args))
    intent = Intent(effect, DEMO, JobId(job_id), 1, 1, PAY, "write", digest, None, 1)
    mark_sent(conn, intent, seen_epoch=0, at=AT)
    if state in ("confirmed", "failed", "unknown"):
        record_outcome(conn, effect, 1, state, None, at=AT)
    if state == "reconciled":
        assert reconcile_effect(conn, DEMO, JobId(job_id), effect, happened=True, outcome_ref=None, at=AT)


def line(conn: Connection) -> None:
    """k-1, its retries k-2 (of another version) and k-3, the retry k-4 of k-2, and a job of its own."""
    reserve(conn, receipt())
    reserve(conn, receipt("k-2", retry_of=JOB, line=JOB, plugin_digest=sha256_of(b"another")))
    reserve(conn, receipt("k-3", retry_of=JOB, line=JOB))
    reserve(conn, receipt("k-4", retry_of=JobId("k-2"), line=JOB))
    reserve(conn, receipt("other"))


def test_a_retry_is_told_from_another_by_all_that_is_asked() -> None:
    prints = [
        fingerprint_of_retry(principal, JobId(source), RetryIn.model_validate(body))
        for principal, source, body in (
            (APP, "k-1", {}),
            (PrincipalId("other"), "k-1", {}),
            (APP, "k-2", {}),
            (APP, "k-1", {"timeout_seconds": 60}),
            (APP, "k-1", {"release": "current"}),
        )
    ]
    assert len(set(prints)) == len(prints)
    spelt_out = RetryIn.model_validate({"release": "same", "timeout_seconds": None})
    assert fingerprint_of_retry(APP, JobId("k-1"), spelt_out) == prints[0]


@pytest.mark.parametrize(("job_id", "newer"), [("k-1", True), ("k-2", True), ("k-3", True), ("k-4", False)])
async def test_every_job_of_a_line_but_the_newest_has_a_newer_one(ledger: Ledger, job_id: str, newer: bool) -> None:
    await ledger.write(line)
    found = await ledger.read(lambda conn: newer_in_line(conn, row(conn, job_id)))
    assert (found is not None) is newer
    assert await ledger.read(lambda conn: newer_in_line(conn, row(conn, "other"))) is None


async def test_a_retry_that_the_engine_refused_takes_over_from_nobody(ledger: Ledger) -> None:
    await ledger.write(lambda conn: [reserve(conn, receipt()), reserve(conn, receipt("k-2", retry_of=JOB, line=JOB))])
    await ledger.write(lambda conn: mark_refused(conn, DEMO, JobId("k-2"), AT))
    assert await ledger.read(lambda conn: newer_in_line(conn, row(conn, JOB))) is None


async def test_open_jobs_doubts_and_people_of_a_line_are_known_from_each_of_it(ledger: Ledger) -> None:
    def people(conn: Connection) -> None:
        line(conn)
        for job_id in ("k-1", "k-2", "k-3", "k-4", "other"):
            insert_authority(conn, authority(job_id, submitted_by=PrincipalId(f"by-{job_id}")))
        mark_ended(conn, [(DEMO, JobId("k-1")), (DEMO, JobId("k-3"))], AT)

    await ledger.write(people)
    await ledger.write(lambda conn: sent(conn, "k-3", "unknown"))
    await ledger.write(lambda conn: sent(conn, "other", "unknown"))
    assert await ledger.read(lambda conn: open_in_line(conn, DEMO, JOB, JobId("k-4"), 9)) == ["k-2"]
    assert await ledger.read(lambda conn: in_doubt_in_line(conn, DEMO, JOB, 9)) == ["eff_k-3"]
    parts = await ledger.read(lambda conn: people_of_line(conn, row(conn, "k-2")))
    assert sorted(part.submitted_by or "" for part in parts) == ["by-k-1", "by-k-2", "by-k-3", "by-k-4"]


@pytest.mark.parametrize("where", ["k-1", "k-2", "k-3"])
@pytest.mark.parametrize(
    ("state", "done"),
    [("confirmed", True), ("reconciled", True), ("failed", False), ("unknown", False), ("sent", False)],
)
async def test_what_took_effect_anywhere_in_the_line_is_known(
    ledger: Ledger, where: str, state: EffectState, done: bool
) -> None:
    await ledger.write(line)
    await ledger.write(lambda conn: sent(conn, where, state))
    before = await ledger.read(lambda conn: done_before(conn, row(conn, "k-4"), PAY, ARGS))
    assert before == (where if done else None)


async def test_other_arguments_another_tool_and_another_line_are_new(ledger: Ledger) -> None:
    await ledger.write(line)
    await ledger.write(lambda conn: sent(conn, "k-1", "confirmed"))

    def known(conn: Connection) -> list[JobId | None]:
        repeats = row(conn, "k-3")
        return [
            done_before(conn, repeats, PAY, {"n": 2}),
            done_before(conn, repeats, ToolName("give"), ARGS),
            done_before(conn, row(conn, "other"), PAY, ARGS),
        ]

    assert await ledger.read(known) == [None] * 3


async def test_a_retry_asks_for_what_its_source_asked_for(ledger: Ledger) -> None:
    await ledger.write(lambda conn: reserve(conn, receipt(mode="dry_run", session="s-1")))
    source = await ledger.read(lambda conn: row(conn, JOB))
    asked = again(source, RetryIn(timeout_seconds=60))
    assert (asked.retry_of, asked.plugin, asked.version, asked.mode) == (JOB, "support-refund", "1.0.0", "dry_run")
    assert (asked.input, asked.timeout_seconds, asked.session) == ({"invoice": "inv_17"}, 60, None)
    assert asked.labels == source.labels
    assert asked.initiator is not None
    assert asked.initiator.model_dump() == source.initiator
    assert again(source, RetryIn(release="current")).version is None
