"""A submission and its receipt: what a 202 holds, what a refused one leaves, and the request clock's header."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
import pytest_asyncio

from tests.http.submissions import (
    BOTH,
    CANARY,
    NONE,
    body_with,
    known_to_engine,
    publish_brisk,
    publish_writer,
    refused,
    row_of,
    submit_bytes,
    traces,
)
from tests.rig.client import Client, fresh_key
from tests.rig.effect_log import EffectLog
from tests.rig.stack import Stack
from tests.rig.wire_client import speak


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def brisk(stack: Stack) -> str:
    return await publish_brisk(stack.client("operator"), "admission-brisk")


async def test_receipt_is_complete_and_says_where_to_look(stack: Stack, app: Client, brisk: str) -> None:
    key, before = fresh_key(), datetime.now(UTC)
    response = await app.submit(brisk, {"a": 1}, key=key, timeout_seconds=60, labels={"ticket": "T-17"})
    assert response.status_code == 202
    assert response.headers["Location"] == f"/v1/jobs/{key}"
    assert response.headers["Retry-After"] == "1"
    assert "Idempotent-Replayed" not in response.headers
    assert response.headers["Content-Type"] == "application/json"
    receipt = response.json()
    row = await row_of(stack, key)
    assert row is not None
    assert row.receipt == response.content
    accepted_at = datetime.fromisoformat(receipt.pop("accepted_at"))
    assert before <= accepted_at <= datetime.now(UTC)
    assert datetime.fromisoformat(receipt.pop("deadline")) == accepted_at + timedelta(seconds=60)
    for name in ("fingerprint", "snapshot"):
        assert receipt.pop(name).startswith("sha256:")
    assert receipt.pop("plugin") == {"name": brisk, "version": "1.0.0", "digest": row.plugin_digest}
    assert receipt == {
        "job_id": key,
        "status": "queued",
        "mode": "live",
        "eligibility": "live_approved",
        "blocker": None,
        "executed": "no",
        "session": None,
        "retry_of": None,
    }
    view = await app.until_ended(key)
    assert (view["job_id"], view["status"], view["labels"]) == (key, "succeeded", {"ticket": "T-17"})
    said = response.json()
    assert (view["accepted_at"], view["deadline"]) == (said["accepted_at"], said["deadline"])


async def test_witness_sees_an_accepted_job(stack: Stack, app: Client, brisk: str) -> None:
    # The mutant of every "nothing happened" of these files: it happened, and the witness must say so.
    key = await app.accepted(brisk)
    assert await traces(stack, key) == BOTH
    assert await traces(stack, fresh_key()) == NONE


async def test_just_issued_id_is_never_unknown(app: Client, brisk: str) -> None:
    for _ in range(15):
        key = await app.accepted(brisk)
        assert (await app.http.get(f"/v1/jobs/{key}")).status_code == 200


async def test_job_can_be_asked_for_while_its_submission_is_under_way(app: Client, brisk: str) -> None:
    # 404 before the key is reserved, 503 until the start is sure, then 200: never back, never anything else.
    order = [404, 503, 200]
    for _ in range(5):
        key = fresh_key()
        submitting = asyncio.create_task(app.submit(brisk, key=key))
        seen: list[int] = []
        while not submitting.done() or seen[-1:] != [200]:
            seen.append((await app.http.get(f"/v1/jobs/{key}")).status_code)
            assert seen == sorted(seen, key=order.index)
        assert (await submitting).status_code == 202


async def test_dry_run_runs_nothing(stack: Stack, app: Client, effects: EffectLog) -> None:
    name = await publish_writer(stack.client("operator"), "admission-dry", effects.url)
    dry, live = await app.accepted(name, mode="dry_run"), await app.accepted(name)
    ended = await app.until_ended(dry)
    assert (ended["status"], ended["mode"], ended["executed"]) == ("succeeded", "dry_run", "no")
    assert ended["result"]["planned"][0]["tool"] == name
    await app.until_ended(live)
    # The live twin is the mutant: the same job, and the log sees its call.
    assert [call.job for call in effects.calls(name)] == [live]


async def test_cut_connection_after_the_request_was_written_loses_nothing(
    stack: Stack, app: Client, effects: EffectLog
) -> None:
    name = await publish_writer(stack.client("operator"), "admission-cut", effects.url)
    key, body = fresh_key(), body_with(name)
    await speak(stack.apis[0].url, app.token, "POST", "/v1/jobs", body.encode(), {"Idempotency-Key": key}, answer=False)
    again = await submit_bytes(app, body, key)
    assert again.status_code in (200, 202)
    twice = await submit_bytes(app, body, key)
    assert (twice.status_code, twice.content) == (200, again.content)
    await app.until_ended(key)
    assert len(effects.calls(name)) == 1


# ---- the request clock's header


@pytest.mark.parametrize(
    ("ahead", "status", "code"),
    [(-0.001, 504, "http-deadline-exceeded"), (-3600, 504, "http-deadline-exceeded"), (31, 422, "input-invalid")],
)
async def test_clock_that_is_past_or_too_far_starts_nothing(
    stack: Stack, app: Client, brisk: str, ahead: float, status: int, code: str
) -> None:
    key = fresh_key()
    until = (datetime.now(UTC) + timedelta(seconds=ahead)).isoformat()
    refused(await submit_bytes(app, body_with(brisk), key, Jobgate_Http_Deadline=until), status, code)
    assert await traces(stack, key) == NONE


@pytest.mark.parametrize("text", ["", CANARY, "5", "2040-01-31", "2040-01-31T12:00:00", "9999-12-31T23:59:59-01:00"])
async def test_malformed_clock_is_input_invalid(stack: Stack, app: Client, brisk: str, text: str) -> None:
    key = fresh_key()
    refused(await submit_bytes(app, body_with(brisk), key, Jobgate_Http_Deadline=text), 422, "input-invalid")
    assert await traces(stack, key) == NONE


async def test_clock_ahead_is_kept_and_two_are_refused(stack: Stack, app: Client, brisk: str) -> None:
    key, until = fresh_key(), (datetime.now(UTC) + timedelta(seconds=25)).isoformat()
    headers = [
        ("Content-Type", "application/json"),
        ("Idempotency-Key", key),
        ("Jobgate-Http-Deadline", until),
        ("Jobgate-Http-Deadline", until),
    ]
    body = body_with(brisk).encode()
    refused(await app.http.post("/v1/jobs", content=body, headers=headers), 422, "input-invalid")
    assert await traces(stack, key) == NONE
    assert (await app.http.post("/v1/jobs", content=body, headers=headers[:-1])).status_code == 202


async def test_body_that_trickles_is_answered_inside_the_clock(stack: Stack, app: Client, brisk: str) -> None:
    key, body = fresh_key(), body_with(brisk).encode()
    until = (datetime.now(UTC) + timedelta(seconds=0.5)).isoformat()
    headers = {"Idempotency-Key": key, "Jobgate-Http-Deadline": until}
    began = asyncio.get_running_loop().time()
    status, document = await speak(
        stack.apis[0].url, app.token, "POST", "/v1/jobs", body, headers, promised=len(body) + 1
    )
    assert asyncio.get_running_loop().time() - began < 3
    assert (status, document["code"]) == (504, "http-deadline-exceeded")
    assert not await known_to_engine(stack, key)
    assert await traces(stack, key) == NONE


# ---- ids and answers


async def test_request_id_and_trace_come_back(app: Client, brisk: str) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    good = await submit_bytes(app, body_with(brisk), X_Request_Id="r-17", traceparent=trace)
    assert good.headers["X-Request-Id"] == "r-17"
    assert good.headers["traceparent"].split("-")[1] == trace.split("-")[1]
    bad = await submit_bytes(app, "{", X_Request_Id="r-18")
    assert refused(bad, 422, "input-invalid")["instance"] == "r-18"
    for text in ("", "a" * 65, CANARY + "/", "ä"):
        response = await app.http.post("/v1/jobs", headers=[(b"X-Request-Id", text.encode("latin-1"))])
        assert refused(response, 400, "idempotency-key-missing")["instance"] not in ("", text)
