"""The receipt protocol's branches: a row as a crash, time or an operator leaves it, and what the same key says then."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import fields, replace
from datetime import UTC, datetime
from typing import Any

import pytest
import pytest_asyncio

from gateway.ledger.authorities import NewAuthority, find_authority, insert_authority
from gateway.ledger.receipts import NewReceipt, mark_refused, reserve
from tests.http.submissions import (
    OLD,
    body_with,
    execution,
    known_to_engine,
    ledger_of,
    publish_brisk,
    refused,
    rewrite_row,
    row_of,
    runs_of,
    submit_bytes,
)
from tests.rig.client import Client, fresh_key
from tests.rig.stack import Stack
from tests.rig.waiting import wait_until
from workflows.contract.ids import JobId, Workspace

Reserved = Callable[..., Awaitable[NewReceipt]]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def brisk(stack: Stack) -> str:
    return await publish_brisk(stack.client("operator"), "receipt-brisk")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def reserved(stack: Stack, brisk: str) -> Reserved:
    """Reserves a key for `body_with(brisk)` as a gateway does that dies before it starts the job."""
    pattern = fresh_key()
    first = await submit_bytes(stack.client("app"), body_with(brisk), pattern)
    assert first.status_code == 202
    accepted = await row_of(stack, pattern)
    assert accepted is not None

    async def put(key: str, **changed: Any) -> NewReceipt:
        texts = {
            name: getattr(accepted, name).replace(pattern.encode(), key.encode()) for name in ("receipt", "start_input")
        }
        base = NewReceipt(**{field.name: getattr(accepted, field.name) for field in fields(NewReceipt)})
        row = replace(base, **{"job_id": JobId(key), "reserved_at": datetime.now(UTC), **texts, **changed})
        async with ledger_of(stack) as ledger:
            assert (await ledger.write(lambda conn: reserve(conn, row))).created
            minted = await ledger.read(lambda conn: find_authority(conn, row.workspace, JobId(pattern)))
            assert minted is not None
            again = NewAuthority(**{field.name: getattr(minted, field.name) for field in fields(NewAuthority)})
            await ledger.write(lambda conn: insert_authority(conn, replace(again, job_id=row.job_id)))
        return row

    return put


async def test_reserved_row_is_started_by_the_next_same_submission(
    stack: Stack, app: Client, brisk: str, reserved: Reserved
) -> None:
    key = fresh_key()
    row = await reserved(key)
    unknown = refused(await app.http.get(f"/v1/jobs/{key}"), 503, "admission-unknown")
    assert unknown["retry_after_s"] >= 1
    refused(await app.cancel(key), 503, "admission-unknown")
    assert not await known_to_engine(stack, key)
    first = await submit_bytes(app, body_with(brisk), key)
    assert (first.status_code, first.content) == (202, row.receipt)
    await app.until_ended(key)
    await wait_until(lambda: _accepted(stack, key), what="the row is accepted")


async def test_reserved_row_is_started_once_by_a_burst(
    stack: Stack, app: Client, brisk: str, reserved: Reserved
) -> None:
    for _ in range(3):
        key = fresh_key()
        row = await reserved(key)
        answers = await asyncio.gather(*(submit_bytes(app, body_with(brisk), key) for _ in range(20)))
        assert Counter(answer.status_code for answer in answers) == {202: 1, 200: 19}
        assert {answer.content for answer in answers} == {row.receipt}


async def test_reserved_row_refuses_other_content_and_stays(
    stack: Stack, app: Client, brisk: str, reserved: Reserved
) -> None:
    key = fresh_key()
    await reserved(key)
    before = await row_of(stack, key)
    refused(await submit_bytes(app, body_with(brisk, mode="dry_run"), key), 422, "idempotency-key-reused")
    assert await row_of(stack, key) == before
    assert not await known_to_engine(stack, key)
    # The mutant: the row's own content does start it.
    assert (await submit_bytes(app, body_with(brisk), key)).status_code == 202
    assert await known_to_engine(stack, key)


async def test_old_reservation_that_never_started_is_expired(
    stack: Stack, app: Client, brisk: str, reserved: Reserved
) -> None:
    key = fresh_key()
    await reserved(key, reserved_at=datetime.now(UTC) - OLD)
    for _ in range(2):
        refused(await submit_bytes(app, body_with(brisk), key), 409, "admission-expired")
        assert not await known_to_engine(stack, key)
    refused(await submit_bytes(app, body_with(brisk, mode="dry_run"), key), 422, "idempotency-key-reused")
    assert not await _accepted(stack, key)
    refused(await app.http.get(f"/v1/jobs/{key}"), 503, "admission-unknown")


async def test_old_reservation_that_did_start_is_a_replay(
    stack: Stack, app: Client, brisk: str, reserved: Reserved
) -> None:
    key = fresh_key()
    row = await reserved(key)
    assert (await submit_bytes(app, body_with(brisk), key)).status_code == 202
    await app.until_ended(key)
    await wait_until(lambda: _accepted(stack, key), what="the row is accepted")
    # As if the gateway had died between the answer and the acceptance, 11 minutes ago.
    await rewrite_row(stack, key, {"confirmed_at": None, "reserved_at": datetime.now(UTC) - OLD})
    assert (await app.status(key))["status"] == "succeeded"
    again = await submit_bytes(app, body_with(brisk), key)
    assert (again.status_code, again.content) == (200, row.receipt)
    assert again.headers["Idempotent-Replayed"] == "true"
    await wait_until(lambda: _accepted(stack, key), what="the row is accepted again")
    assert await runs_of(stack, key) == 1


async def test_young_row_whose_job_ended_is_not_run_again(
    stack: Stack, app: Client, brisk: str, reserved: Reserved
) -> None:
    key = fresh_key()
    row = await reserved(key)
    assert (await submit_bytes(app, body_with(brisk), key)).status_code == 202
    await app.until_ended(key)
    await wait_until(lambda: _accepted(stack, key), what="the row is accepted")
    await rewrite_row(stack, key, {"confirmed_at": None})
    again = await submit_bytes(app, body_with(brisk), key)
    assert (again.status_code, again.content) == (200, row.receipt)
    assert await runs_of(stack, key) == 1


async def test_refused_row_is_reserved_anew_for_the_same_content_only(
    stack: Stack, app: Client, brisk: str, reserved: Reserved
) -> None:
    key, at = fresh_key(), datetime.now(UTC) - OLD
    row = await reserved(key, reserved_at=at)
    await _refuse(stack, key)
    refused(await app.http.get(f"/v1/jobs/{key}"), 404, "not-found")
    refused(await app.cancel(key), 404, "not-found")
    refused(await submit_bytes(app, body_with(brisk, mode="dry_run"), key), 422, "idempotency-key-reused")
    answers = await asyncio.gather(*(submit_bytes(app, body_with(brisk), key) for _ in range(20)))
    assert Counter(answer.status_code for answer in answers) == {202: 1, 200: 19}
    assert len({answer.content for answer in answers}) == 1
    assert answers[0].content != row.receipt
    assert datetime.fromisoformat(answers[0].json()["accepted_at"]) > at
    await app.until_ended(key)
    found = await row_of(stack, key)
    assert found is not None
    assert found.refused_at is None


async def test_refused_row_whose_key_somebody_took_says_so(
    stack: Stack, app: Client, brisk: str, reserved: Reserved
) -> None:
    key = fresh_key()
    await reserved(key)
    await _refuse(stack, key)
    await (await stack.engine()).start_workflow("Foreign", id=f"demo.{key}", task_queue="nobody")
    refused(await submit_bytes(app, body_with(brisk), key), 409, "key-taken-outside")
    await (await execution(stack, key)).terminate()


FOREIGN: list[tuple[str, str, dict[str, Any] | None]] = [
    ("another type", "Foreign", None),
    ("our type without a memo", "JobWorkflow", None),
    ("our type with a memo of something else", "JobWorkflow", {"job": "anything", "state": [1]}),
    ("our type with another fingerprint", "JobWorkflow", {"job": None}),
]


@pytest.mark.parametrize(("type_", "memo"), [case[1:] for case in FOREIGN], ids=[case[0] for case in FOREIGN])
async def test_key_taken_by_hand_is_refused_and_counted(
    stack: Stack, app: Client, brisk: str, type_: str, memo: dict[str, Any] | None
) -> None:
    key, engine = fresh_key(), await stack.engine()
    if memo == {"job": None}:
        twin = fresh_key()
        assert (await submit_bytes(app, body_with(brisk), twin)).status_code == 202
        described = await (await execution(stack, twin)).describe()
        memo = {"job": {**(await described.memo_value("job")), "fingerprint": "sha256:" + "0" * 64}}
    await engine.start_workflow(type_, id=f"demo.{key}", task_queue="nobody", memo=memo)
    before = await _taken_outside(stack)
    for count in (1, 2):
        refused(await submit_bytes(app, body_with(brisk), key), 409, "key-taken-outside")
        assert await _taken_outside(stack) == before + count
    assert not await _accepted(stack, key)
    assert await runs_of(stack, key) <= 1
    status = (await app.http.get(f"/v1/jobs/{key}")).status_code
    assert status == 503 or memo is not None
    await (await execution(stack, key)).terminate()


async def test_metric_of_taken_keys_can_be_zero_and_counts_only_them(stack: Stack, app: Client, brisk: str) -> None:
    # The other half of the test above: an ordinary job does not raise it.
    before = await _taken_outside(stack)
    await app.accepted(brisk, {"n": 1})
    assert await _taken_outside(stack) == before


async def _accepted(stack: Stack, key: str) -> bool:
    row = await row_of(stack, key)
    return row is not None and row.accepted


async def _refuse(stack: Stack, key: str) -> None:
    async with ledger_of(stack) as ledger:
        at = datetime.now(UTC)
        assert await ledger.write(lambda conn: mark_refused(conn, Workspace("demo"), JobId(key), at))


async def _taken_outside(stack: Stack) -> float:
    response = await stack.client("operator").http.get("/metrics")
    assert response.status_code == 200
    name = "jobgate_keys_taken_outside_total"
    lines = [line for line in response.text.splitlines() if line.startswith(name)]
    return sum(float(line.rpartition(" ")[2]) for line in lines)
