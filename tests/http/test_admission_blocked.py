"""May this run? Until a gate is opened the honest answer is "not yet", no key is taken and no workflow exists."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import pytest_asyncio

from gateway.ledger.catalog import withdraw_version
from gateway.ledger.phases import NewPromotion, insert_promotion
from tests.http.submissions import (
    BOTH,
    CANARY,
    NONE,
    body_with,
    ledger_of,
    publish_brisk,
    publish_writer,
    refused,
    submit_bytes,
    traces,
)
from tests.rig.client import Client, Json, fresh_key
from tests.rig.effect_log import EffectLog
from tests.rig.plugins import fresh_name, promote
from tests.rig.stack import Stack
from workflows.contract.gates import Phase
from workflows.contract.ids import PluginName, PrincipalId, Workspace


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def brisk(stack: Stack) -> str:
    limits = {"max_steps": 20, "max_tokens": 1000, "max_cost_usd": "1.00", "max_duration_seconds": 600}
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    return await publish_brisk(stack.client("operator"), "gate-brisk", limits=limits, manifest={"input_schema": schema})


async def blocked(app: Client, plugin: str, blocker: str, *, code: str = "blocked", **members: Any) -> Json:
    """The refusal of a submission, judged whole; the caller judges what it left."""
    document = refused(await submit_bytes(app, body_with(plugin, **members)), 409, code)
    assert document["executed"] == "no"
    assert document["blocker"] == blocker
    assert document["not_yet"].startswith("Not yet")
    assert "next_gate" in document
    return document


async def test_fresh_version_is_blocked_and_takes_no_key(stack: Stack, app: Client, effects: EffectLog) -> None:
    name = await publish_writer(stack.client("operator"), "gate-fresh", effects.url, phase=None)
    key = fresh_key()
    for mode in ("live", "dry_run"):
        response = await submit_bytes(app, body_with(name, mode=mode), key)
        document = refused(response, 409, "blocked")
        assert (document["eligibility"], document["blocker"]) == ("blocked", "phase_blocked_noop")
        assert (document["executed"], document["next_gate"]) == ("no", "stateful_noop")
        assert document["not_yet"].startswith("Not yet")
        assert document["retryable"] is False
        assert await traces(stack, key) == NONE
    refused(await app.http.get(f"/v1/jobs/{key}"), 404, "not-found")
    assert effects.calls() == []
    # The mutant of all that: once promoted, the same key with other content leaves traces and calls the tool.
    await promote(stack.client("operator"), name, "1.0.0")
    assert (await submit_bytes(app, body_with(name, labels={"other": "content"}), key)).status_code == 202
    assert await traces(stack, key) == BOTH
    await app.until_ended(key)
    assert len(effects.calls(name)) == 1


async def test_release_and_deployment_that_are_missing_are_named(stack: Stack, app: Client) -> None:
    operator, name = stack.client("operator"), fresh_name("gate-half")
    files = {
        "plugin.yaml": json.dumps(
            {"name": name, "version": "1.0.0", "description": "x", "instructions": "instructions.md"}
        ),
        "instructions.md": "x",
        "script.yaml": "- final: {message: done}\n",
    }
    await operator.post("/v1/plugins", {"files": files}, expect=201)
    await promote(operator, name, "1.0.0")
    assert (await blocked(app, name, "release_missing"))["eligibility"] == "blocked"
    await blocked(app, name, "deployment_missing", version="1.0.0")
    await operator.put(f"/v1/plugins/{name}/release", {"version": "1.0.0"})
    await blocked(app, name, "deployment_missing")
    await operator.put(f"/v1/plugins/{name}/deployment", {"plugin": name, "model": "scripted:script.yaml"})
    assert (await app.submit(name)).status_code == 202


async def test_unknown_plugin_and_version_leave_nothing(stack: Stack, app: Client, brisk: str) -> None:
    for body in (
        body_with("no-such-plugin"),
        body_with("no-such-plugin", version="1.0.0"),
        body_with(brisk, version="9.9.9"),
        body_with(brisk, version=CANARY),
    ):
        key = fresh_key()
        refused(await submit_bytes(app, body, key), 404, "plugin-unknown")
        assert await traces(stack, key) == NONE


async def test_named_version_and_released_one_are_both_admitted(stack: Stack, app: Client) -> None:
    operator, name = stack.client("operator"), fresh_name("gate-two")
    await publish_brisk(operator, name)
    await publish_brisk(operator, name, version="2.0.0")
    assert (await app.submit(name)).json()["plugin"]["version"] == "2.0.0"
    assert (await app.submit(name, version="1.0.0")).json()["plugin"]["version"] == "1.0.0"


async def test_withdrawn_version_is_blocked(stack: Stack, app: Client) -> None:
    name = await publish_brisk(stack.client("operator"), fresh_name("gate-withdrawn"))
    async with ledger_of(stack) as ledger:
        at = datetime.now(UTC)
        await ledger.write(
            lambda conn: withdraw_version(
                conn, Workspace("demo"), PluginName(name), "1.0.0", reason="a test", by="test", at=at
            )
        )
    await blocked(app, name, "version_withdrawn")


async def test_one_changed_byte_in_the_blob_store_blocks(stack: Stack, app: Client) -> None:
    name = fresh_name("gate-tampered")
    sign = f"Only {name} says this."
    await publish_brisk(stack.client("operator"), name, files={"notes.md": sign})
    assert (await app.submit(name)).status_code == 202
    held = [path for path in (stack.data / "blobs").rglob("*") if path.is_file() and path.read_text() == sign]
    assert len(held) == 1
    held[0].write_text(sign.upper())
    async with asyncio.timeout(10):  # what was verified is believed for a second
        while (response := await app.submit(name)).status_code == 202:
            await asyncio.sleep(0.1)
    assert refused(response, 409, "blocked")["blocker"] == "snapshot_mismatch"
    held[0].write_text(sign)
    assert (await app.submit(name)).status_code == 202


async def test_credential_reference_that_is_not_allowed_is_a_scope_violation(
    stack: Stack, app: Client, effects: EffectLog
) -> None:
    name = fresh_name("gate-credential")
    bound = {"base_url": effects.url, "allow_private": True, "credential": {"ref": "env:JOBGATE_DATA"}}
    await publish_writer(stack.client("operator"), name, effects.url, deployment={"connections": {"tools": bound}})
    await blocked(app, name, "scope_violation")
    assert effects.calls() == []


async def test_local_only_runs_dry_and_not_live(stack: Stack, app: Client) -> None:
    operator = stack.client("operator")
    local = await publish_brisk(operator, fresh_name("gate-local"), manifest={"offload": "local_only"})
    document = await blocked(app, local, "local_only_by_contract", code="local-only")
    assert document["eligibility"] == "local_only"
    incapable = await publish_brisk(operator, fresh_name("gate-gpu"), manifest={"requires": ["gpu"]})
    await blocked(app, incapable, "capability_unavailable", code="local-only")
    dry = await app.submit(local, mode="dry_run")
    assert (dry.status_code, dry.json()["eligibility"]) == (202, "local_only")
    ended = await app.until_ended(dry.json()["job_id"])
    assert (ended["status"], ended["executed"]) == ("succeeded", "no")


async def test_version_between_the_gates_is_held_or_refused(stack: Stack, app: Client, effects: EffectLog) -> None:
    name = await publish_writer(stack.client("operator"), fresh_name("gate-between"), effects.url, phase=None)
    await _climb(stack, name, "stateful_noop")
    document = await blocked(app, name, "awaiting_promotion", code="not-live-approved", on_blocked="refuse")
    assert (document["eligibility"], document["next_gate"]) == ("dry_run_eligible", "live_canary")
    held = await app.submit(name)
    assert held.status_code == 202
    receipt = held.json()
    assert (receipt["eligibility"], receipt["blocker"]) == ("dry_run_eligible", "awaiting_promotion")
    await app.until_event(receipt["job_id"], "job.held")
    view = await app.status(receipt["job_id"])
    assert (view["status"], view["executed"], view["blocker"]) == ("queued", "no", "awaiting_promotion")
    assert effects.calls() == []
    await app.cancel(receipt["job_id"])
    assert (await app.until_ended(receipt["job_id"]))["status"] == "canceled"


@pytest.mark.parametrize(
    ("members", "status", "code"),
    [
        ({"budget": {"max_steps": 21}}, 422, "limit-exceeded"),
        ({"budget": {"max_tokens": 1001}}, 422, "limit-exceeded"),
        ({"budget": {"max_cost_usd": "1.000000001"}}, 422, "limit-exceeded"),
        ({"timeout_seconds": 601}, 422, "limit-exceeded"),
        ({"timeout_seconds": 2**53 - 1}, 422, "limit-exceeded"),
        ({"deadline": "9999-12-31T23:59:59Z"}, 422, "limit-exceeded"),
        ({"timeout_seconds": 0}, 422, "deadline-invalid"),
        ({"timeout_seconds": -1}, 422, "deadline-invalid"),
        ({"timeout_seconds": 60, "deadline": "2040-01-31T12:00:00Z"}, 422, "deadline-invalid"),
        ({"deadline": "1970-01-01T00:00:00Z"}, 422, "deadline-invalid"),
        ({"deadline": "2040-01-31"}, 422, "deadline-invalid"),
        ({"deadline": "2040-01-31T12:00:00"}, 422, "deadline-invalid"),
        ({"deadline": "2016-12-31T23:59:60Z"}, 422, "deadline-invalid"),
        ({"deadline": CANARY}, 422, "deadline-invalid"),
        ({"deadline": 1893456000}, 422, "deadline-invalid"),
        ({"deadline": 1893456000000}, 422, "deadline-invalid"),
        ({"input": {"n": "1", CANARY: CANARY}}, 422, "input-invalid"),
    ],
    ids=repr,
)
async def test_more_than_the_limits_and_impossible_deadlines(
    stack: Stack, app: Client, brisk: str, members: dict[str, Any], status: int, code: str
) -> None:
    key = fresh_key()
    refused(await submit_bytes(app, body_with(brisk, **members), key), status, code)
    assert await traces(stack, key) == NONE


async def test_deadline_past_by_a_millisecond_and_in_another_zone(stack: Stack, app: Client, brisk: str) -> None:
    past = (datetime.now(UTC) - timedelta(milliseconds=1)).isoformat()
    refused(await submit_bytes(app, body_with(brisk, deadline=past)), 422, "deadline-invalid")
    ahead = datetime.now(UTC) + timedelta(minutes=5)
    there = (ahead + timedelta(hours=5, minutes=30)).replace(tzinfo=None).isoformat() + "+05:30"
    accepted = await submit_bytes(app, body_with(brisk, deadline=there))
    assert accepted.status_code == 202
    assert accepted.json()["deadline"] == ahead.isoformat().replace("+00:00", "Z")


async def _climb(stack: Stack, name: str, phase: Phase) -> None:
    """Put a version on a rung that no route opens yet."""
    promotion = NewPromotion(
        promotion_id=f"promo-{name}-{phase}",
        workspace=Workspace("demo"),
        plugin=PluginName(name),
        version="1.0.0",
        digest=None,
        phase=phase,
        state="done",
        by=PrincipalId("test"),
        approved_by=None,
        reason="a test",
        break_glass=True,
        release_held=False,
        at=datetime.now(UTC),
    )
    async with ledger_of(stack) as ledger:
        assert await ledger.write(lambda conn: insert_promotion(conn, promotion)) is not None
