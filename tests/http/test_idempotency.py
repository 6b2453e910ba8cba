"""One key, one job, for ever: the first receipt again to the byte, or a refusal that changes nothing."""

import asyncio
import json
import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest_asyncio

from tests.http.submissions import (
    CANARY,
    NONE,
    body_with,
    execution,
    known_to_engine,
    publish_brisk,
    publish_writer,
    refused,
    replayed,
    row_of,
    submit_bytes,
    traces,
)
from tests.rig.client import Client, fresh_key
from tests.rig.effect_log import Answer, Behaviour, EffectLog
from tests.rig.plugins import call, final, publish_plugin, tool, turn
from tests.rig.stack import Stack
from tests.rig.waiting import wait_until


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def brisk(stack: Stack) -> str:
    return await publish_brisk(stack.client("operator"), "key-brisk")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def writer(stack: Stack) -> str:
    return await publish_writer(stack.client("operator"), "key-writer", stack.effects.url)


async def test_burst_of_identical_submissions_is_one_job(app: Client, effects: EffectLog, writer: str) -> None:
    for _ in range(3):
        effects.reset()
        key, body = fresh_key(), body_with(writer)
        answers = await asyncio.gather(*(submit_bytes(app, body, key) for _ in range(30)))
        assert Counter(answer.status_code for answer in answers) == {202: 1, 200: 29}
        assert len({answer.content for answer in answers}) == 1
        assert Counter(answer.headers.get("Idempotent-Replayed") for answer in answers) == {None: 1, "true": 29}
        await app.until_ended(key)
        assert len(effects.calls(writer)) == 1


async def test_burst_of_different_submissions_has_one_winner(app: Client, effects: EffectLog, writer: str) -> None:
    key = fresh_key()
    answers = await asyncio.gather(
        *(submit_bytes(app, body_with(writer, labels={"n": str(n % 5)}), key) for n in range(30))
    )
    assert Counter(answer.status_code for answer in answers) == {202: 1, 200: 5, 422: 24}
    first = next(answer for answer in answers if answer.status_code == 202)
    assert {answer.content for answer in answers if answer.status_code == 200} == {first.content}
    for answer in answers:
        if answer.status_code == 422:
            refused(answer, 422, "idempotency-key-reused")
    await app.until_ended(key)
    assert len(effects.calls(writer)) == 1


# ---- the same content, or other


async def test_harmless_differences_are_a_replay(app: Client, brisk: str) -> None:
    key, soon = fresh_key(), datetime.now(UTC) + timedelta(hours=1)
    said = soon.strftime("%Y-%m-%dT%H:%M:%S")
    there = (soon + timedelta(hours=5, minutes=30)).strftime("%Y-%m-%dT%H:%M:%S")
    first = await submit_bytes(
        app, f'{{"plugin": "{brisk}", "input": {{"b": [1, 2], "a": 1, "c": 0.1}}, "deadline": "{said}Z"}}', key
    )
    assert first.status_code == 202
    for body in (
        f'{{"input":{{"a":1.0,"c":0.10,"b":[1,2]}},"deadline":"{said}Z","plugin":"{brisk}"}}',
        f'\n {{"plugin": "{brisk}", "input": {{"b": [1, 20e-1], "a": 1, "c": 1e-1}}, "deadline": "{there}+05:30"}}\t',
        f'{{"plugin": "{brisk}", "input": {{"b": [1, 2], "a": 1, "c": 0.1}}, "deadline": "{said}.000000z",'
        ' "labels": {}, "version": null, "mode": "live", "timeout_seconds": null, "on_blocked": "hold",'
        ' "session": null, "initiator": null, "budget": null}',
    ):
        replayed(await submit_bytes(app, body, key), first)


async def test_other_content_is_refused_and_changes_nothing(stack: Stack, app: Client, brisk: str) -> None:
    key = fresh_key()
    base: dict[str, Any] = {"plugin": brisk, "input": {"n": {"deep": [1, 2], "text": CANARY}}, "timeout_seconds": 60}
    first = await submit_bytes(app, json.dumps(base), key)
    assert first.status_code == 202
    ended, row = await app.until_ended(key), await row_of(stack, key)
    history = (await (await execution(stack, key)).describe()).history_length
    others: list[dict[str, Any]] = [
        {"input": {"n": {"deep": [1, 3], "text": CANARY}}},
        {"input": {"n": {"deep": [2, 1], "text": CANARY}}},
        {"input": {"n": {"deep": ["1", 2], "text": CANARY}}},
        {"input": {"n": {"deep": [True, 2], "text": CANARY}}},
        {"input": {"n": {"deep": [1, 2], "text": CANARY, "more": None}}},
        {"mode": "dry_run"},
        {"version": "1.0.0"},
        {"plugin": "another"},
        {"timeout_seconds": 61},
        {"timeout_seconds": None},
        {"on_blocked": "refuse"},
        {"labels": {"a": "b"}},
        {"initiator": {"kind": "user", "id": "1"}},
        {"budget": {"max_steps": 3}},
        {"session": "s"},
    ]
    for other in others:
        refused(await submit_bytes(app, json.dumps({**base, **other}), key), 422, "idempotency-key-reused")
    assert await row_of(stack, key) == row
    assert (await (await execution(stack, key)).describe()).history_length == history
    after = await app.status(key)
    assert {**after, "as_of": None} == {**ended, "as_of": None}
    replayed(await submit_bytes(app, json.dumps(base), key), first)


async def test_another_principal_is_other_content_and_another_workspace_another_key(
    stack: Stack, app: Client, brisk: str
) -> None:
    key, body = fresh_key(), body_with(brisk)
    first = await submit_bytes(app, body, key)
    assert first.status_code == 202
    # Whether or not that principal may submit at all: a known key decides, and nothing else is evaluated.
    for principal in ("operator", "approver", "nobody"):
        refused(await submit_bytes(stack.client(principal), body, key), 422, "idempotency-key-reused")
    elsewhere = stack.client("app", workspace="elsewhere")
    refused(await submit_bytes(elsewhere, body, key), 403, "not-permitted")
    assert await traces(stack, key, workspace="elsewhere") == NONE
    replayed(await submit_bytes(app, body, key), first)


# ---- the same receipt whatever has happened since


async def test_replay_is_the_first_receipt_after_every_ending(stack: Stack, app: Client, effects: EffectLog) -> None:
    """Succeeded, failed, canceled, out of time and terminated; then with every execution deleted in the engine."""
    operator, held = stack.client("operator"), "key-held"
    await publish_plugin(
        operator, held, [turn(call(held)), final()], tools=[tool(held)], tools_url=effects.url, policy=ALLOW
    )
    effects.set_behaviour(held, Behaviour(Answer.HOLD))
    failing = "key-failing"
    await publish_plugin(operator, failing, [{"fail": {"status": 400, "times": 99}}])
    done, asking = await publish_brisk(operator, "key-done"), "key-asking"
    await publish_plugin(operator, asking, [turn(call("ask_human", {"question": "Go on?"})), final()])
    bodies = {
        "succeeded": body_with(done),
        "failed": body_with(failing),
        "canceled": body_with(held),
        "timed_out": body_with(asking, timeout_seconds=1),
        "terminated": body_with(held),
    }
    keys = {ending: fresh_key() for ending in bodies}
    firsts = {ending: await submit_bytes(app, body, keys[ending]) for ending, body in bodies.items()}
    assert {first.status_code for first in firsts.values()} == {202}
    await effects.wait_for_calls(held, 2)
    assert (await app.cancel(keys["canceled"])).status_code == 202
    _temporal(stack, "terminate", keys["terminated"])
    effects.release(held)
    ends = {ending: (await app.until_ended(key)) for ending, key in keys.items()}
    assert {ending: view["status"] for ending, view in ends.items()} == {
        "succeeded": "succeeded",
        "failed": "failed",
        "canceled": "canceled",
        "timed_out": "failed",
        "terminated": "failed",
    }
    assert ends["timed_out"]["failure"]["code"] == "deadline_exceeded"
    assert ends["terminated"]["failure"]["code"] == "ended_by_operator"
    effects.reset()

    async def all_replayed() -> None:
        for ending, body in bodies.items():
            replayed(await submit_bytes(app, body, keys[ending]), firsts[ending])

    await all_replayed()
    for key in keys.values():
        _temporal(stack, "delete", key, "--yes")
    for ending, key in keys.items():
        await wait_until(lambda key=key: _gone(stack, key), 15, what=f"{ending} is deleted")
        expired = refused(await app.http.get(f"/v1/jobs/{key}"), 410, "job-expired")
        assert expired["receipt"] == firsts[ending].json()
    await all_replayed()
    # A second run would be known to the engine again, and its tool to the effect log.
    for key in keys.values():
        assert not await known_to_engine(stack, key)
        refused(await app.cancel(key), 410, "job-expired")
    assert effects.calls() == []


ALLOW = "permit (principal, action, resource);\n"


def _temporal(stack: Stack, verb: str, key: str, *more: str) -> None:
    """The operator's command line, as an operator types it."""
    program = str(Path(sys.executable).with_name("temporal"))
    where = ["--address", stack.address, "--namespace", stack.settings.namespace, *more]
    done = subprocess.run(
        [program, "workflow", verb, "--workflow-id", f"demo.{key}", *where], capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 0, done.stderr


async def _gone(stack: Stack, key: str) -> bool:
    return not await known_to_engine(stack, key)


async def test_replay_is_the_first_receipt_after_a_release_a_withdrawn_plugin_and_a_lost_grant(
    stack: Stack, app: Client
) -> None:
    operator = stack.client("operator")
    name = await publish_brisk(operator, "key-released")
    key, body = fresh_key(), body_with(name)
    first = await submit_bytes(app, body, key)
    assert first.status_code == 202
    await publish_brisk(operator, name, version="2.0.0", phase=None)
    # What is new is judged anew: the new release may not run, and only the known key is answered.
    refused(await submit_bytes(app, body), 409, "blocked")
    replayed(await submit_bytes(app, body, key), first)
