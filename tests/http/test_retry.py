"""A retry is a new job under a key of its own that names its source: when it is refused, its key, and what it is."""

from collections import Counter
from typing import Any

import httpx2
import pytest

from tests.http.decisions import person
from tests.http.jobs import plugin_of, terminate, waiting_job, waiting_plugin
from tests.http.submissions import NONE, refused, replayed, row_of, submit_bytes, traces
from tests.rig.client import Client, Json, fresh_key
from tests.rig.effect_log import Answer, Behaviour
from tests.rig.plugins import call, final, fresh_name, tool, turn
from tests.rig.stack import Stack


async def retry(who: Client, job: str, key: str | None = None, **body: Any) -> httpx2.Response:
    return await who.http.post(f"/v1/jobs/{job}/retry", json=body, headers={"Idempotency-Key": key or fresh_key()})


async def retried(who: Client, job: str, key: str | None = None, **body: Any) -> str:
    answer = await retry(who, job, key, **body)
    assert answer.status_code == 202, answer.text
    assert answer.json()["retry_of"] == job
    return answer.json()["job_id"]


async def writer(stack: Stack, operator: Client, effect: str = "write", **options: Any) -> tuple[str, str]:
    """A plugin whose job writes once, unattended, and then ends; and the write's name."""
    name = fresh_name("once")
    script = [turn(call(name, {"n": 1})), final({"ok": True})]
    return await plugin_of(stack, operator, script, tool(name, effect), **options), name


async def done(app: Client, plugin: str, **body: Any) -> str:
    job = await app.accepted(plugin, **body)
    assert (await app.until_ended(job))["status"] == "succeeded"
    return job


# ---- when it is refused


async def test_an_open_job_is_not_retried_and_the_key_stays_free(
    stack: Stack, operator: Client, app: Client, approver: Client
) -> None:
    job, request = await waiting_job(app, await waiting_plugin(stack, operator))
    key = fresh_key()
    refused(await retry(app, job, key), 409, "job-not-ended")
    assert await traces(stack, key) == NONE
    await approver.decide(job, request, "reject")
    await app.until_ended(job)
    assert await retried(app, job, key) == key


async def test_what_somebody_else_submitted_is_retried_by_who_may_read_it(
    stack: Stack, operator: Client, app: Client
) -> None:
    plugin = await plugin_of(stack, operator, [final({"ok": True})])
    job, key = await done(app, plugin), fresh_key()
    sender, _, _ = await person(stack, operator, "jobs:submit")
    refused(await retry(sender, job, key), 403, "not-permitted")
    assert await traces(stack, key) == NONE
    own = await sender.accepted(plugin)
    assert (await app.until_ended(own))["status"] == "succeeded"
    again = await retried(sender, own)
    assert (await app.until_ended(again))["status"] == "succeeded"
    reader, _, _ = await person(stack, operator, "jobs:submit", "jobs:read")
    await retried(reader, job)


async def test_a_job_of_a_moment_ago_is_open_and_never_unknown(stack: Stack, operator: Client, app: Client) -> None:
    """Its acceptance may reach the ledger after its receipt has been answered."""
    plugin = await waiting_plugin(stack, operator)
    codes: Counter[tuple[int, str]] = Counter()
    for _ in range(20):
        answer = await retry(app, await app.accepted(plugin))
        codes[answer.status_code, answer.json()["code"]] += 1
    assert codes == {(409, "job-not-ended"): 20}


async def test_a_job_whose_effect_is_not_known_is_not_retried_until_it_is(
    stack: Stack, operator: Client, app: Client, approver: Client
) -> None:
    plugin, name = await writer(stack, operator)
    stack.effects.set_behaviour(name, Behaviour(answer=Answer.DROP_AFTER_RECORDING, times=1))
    job = await app.accepted(plugin)
    [request] = await app.until_request(job)
    await approver.decide(job, request, "settle", answer="stop")
    assert (await app.until_ended(job))["failure"]["code"] == "effect_unknown"
    key = fresh_key()
    refused(await retry(app, job, key), 409, "effect-unreconciled")
    assert await traces(stack, key) == NONE
    assert len(stack.effects.calls(name)) == 1


@pytest.mark.parametrize("source", ["t-no-such-job", "-", "a b", "%2e%2e"])
async def test_what_is_no_job_is_not_retried(stack: Stack, app: Client, source: str) -> None:
    key = fresh_key()
    refused(await retry(app, source, key), 404, "not-found")
    assert await traces(stack, key) == NONE


async def test_a_retry_needs_scope_and_grant_as_a_submission_does(stack: Stack, operator: Client, app: Client) -> None:
    plugin, name = await writer(stack, operator)
    job = await done(app, plugin)
    nobody, _, _ = await person(stack, operator, "jobs:read")
    refused(await retry(nobody, job), 403, "not-permitted")
    refused(await retry(stack.client("app", scopes=["jobs:read"]), job), 403, "not-permitted")
    elsewhere = stack.client("app", workspace="elsewhere")
    refused(await retry(elsewhere, job), 404, "not-found")
    async with Client(app.url, None) as stranger:
        refused(await retry(stranger, job), 401, "unauthenticated")
    assert len(stack.effects.calls(name)) == 1


@pytest.mark.parametrize(
    "body", [{"release": "other"}, {"timeout_seconds": "60"}, {"mode": "live"}, {"timeout_seconds": 0}, []], ids=str
)
async def test_what_is_no_retry_is_told_so(stack: Stack, operator: Client, app: Client, body: Any) -> None:
    plugin, _ = await writer(stack, operator)
    job = await done(app, plugin)
    answer = await app.http.post(f"/v1/jobs/{job}/retry", json=body, headers={"Idempotency-Key": fresh_key()})
    assert answer.status_code == 422, answer.text


# ---- its key


async def test_the_same_retry_is_answered_to_the_byte_and_another_one_is_refused(
    stack: Stack, operator: Client, app: Client, approver: Client
) -> None:
    plugin, name = await writer(stack, operator)
    job, key = await done(app, plugin), fresh_key()
    first = await retry(app, job, key)
    assert first.status_code == 202
    replayed(await retry(app, job, key), first)
    replayed(await retry(app, job, key, release="same", timeout_seconds=None), first)
    refused(await retry(app, job, key, release="current"), 422, "idempotency-key-reused")
    refused(await retry(app, await done(app, plugin), key), 422, "idempotency-key-reused")
    refused(await submit_bytes(app, f'{{"plugin": "{plugin}", "input": {{}}}}', key), 422, "idempotency-key-reused")
    refused(await retry(app, job, job), 422, "idempotency-key-reused")
    [request] = await app.until_request(key)
    await approver.decide(key, request, "reject")
    await app.until_ended(key)
    replayed(await retry(app, job, key), first)
    assert len(stack.effects.calls(name)) == 2  # the two jobs that were submitted


# ---- what it is


async def test_a_retry_names_its_source_and_leaves_it_as_it_was(stack: Stack, operator: Client, app: Client) -> None:
    plugin = await plugin_of(stack, operator, [final({"ok": True})])
    body: Json = {"labels": {"ticket": "T-17"}, "initiator": {"kind": "user", "id": "cust_9"}}
    job = await done(app, plugin, input={"invoice": "inv_17"}, session=fresh_name("line"), **body)
    before = {**await app.status(job), "as_of": ""}
    log = await app.events(job)
    again = await retried(app, job, timeout_seconds=120)
    view = await app.until_ended(again)
    assert (view["status"], view["retry_of"], view["session"], view["labels"]) == (
        "succeeded",
        job,
        None,
        {"ticket": "T-17"},
    )
    assert {**await app.status(job), "as_of": ""} == before
    assert await app.events(job) == log
    listed = {row["job_id"]: row["retry_of"] for row in (await app.get("/v1/jobs", params={"plugin": plugin}))["data"]}
    assert listed == {job: None, again: job}
    shown: Json = await operator.get(f"/v1/operator/jobs/{again}")
    assert (shown["retry_of"], shown["initiator"]) == (job, {"kind": "user", "id": "cust_9"})
    kept, source = await row_of(stack, again), await row_of(stack, job)
    assert kept is not None
    assert source is not None
    assert kept.job_input == source.job_input
    assert (kept.deadline_at - kept.reserved_at).total_seconds() == pytest.approx(120, abs=1)


@pytest.mark.parametrize("how", ["failed", "canceled", "terminated"])
async def test_a_job_is_retried_however_it_ended(stack: Stack, operator: Client, app: Client, how: str) -> None:
    job, _ = await waiting_job(
        app, await waiting_plugin(stack, operator), timeout_seconds=6 if how == "failed" else None
    )
    if how == "canceled":
        await app.cancel(job)
    elif how == "terminated":
        await terminate(stack, job)
    await app.until_ended(job)
    again = await retried(app, job)
    assert (await app.until_status(again, "waiting_for_human"))["retry_of"] == job
    await app.cancel(again)


async def test_a_retry_of_a_dry_run_is_one(stack: Stack, operator: Client, app: Client) -> None:
    plugin, name = await writer(stack, operator)
    job = await done(app, plugin, mode="dry_run")
    view = await app.until_ended(await retried(app, job))
    assert (view["mode"], view["executed"], view["result"]["planned"][0]["tool"]) == ("dry_run", "no", name)
    assert stack.effects.calls(name) == []
