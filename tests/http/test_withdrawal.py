"""Withdrawn versions, and upgrade, rollback, upgrade: what is admitted afterwards, and what ran before stays."""

import pytest

from tests.http.jobs import waiting_job, waiting_plugin
from tests.http.submissions import CANARY, NONE, publish_brisk, refused, traces
from tests.http.trail import audit_of
from tests.rig.client import Client, fresh_key
from tests.rig.plugins import final, fresh_name, publish_plugin, tool
from tests.rig.stack import Stack


async def withdraw(
    operator: Client, plugin: str, version: str = "1.0.0", reason: str = "it overpays"
) -> dict[str, object]:
    return await operator.post(f"/v1/plugins/{plugin}/versions/{version}/withdrawal", {"reason": reason})


async def test_nothing_is_admitted_on_a_withdrawn_version(stack: Stack, operator: Client, app: Client) -> None:
    plugin = await publish_brisk(operator, fresh_name("gone"))
    before = await app.accepted(plugin)
    view = await app.until_ended(before)
    first = await withdraw(operator, plugin)
    assert (first["name"], first["version"], first["withdrawn_reason"]) == (plugin, "1.0.0", "it overpays")
    key = fresh_key()
    for version in (None, "1.0.0"):
        document = refused(await app.submit(plugin, key=key, version=version), 409, "blocked")
        assert (document["blocker"], document["executed"]) == ("version_withdrawn", "no")
        assert document["not_yet"].startswith("Not yet")
    assert await traces(stack, key) == NONE
    assert await withdraw(operator, plugin, reason="another") == first
    [listed] = (await operator.get(f"/v1/plugins/{plugin}/versions"))["data"]
    assert listed == first
    assert (await app.status(before))["plugin"] == view["plugin"]
    told = [line for line in await audit_of(operator) if line["action"] == "plugin.withdrawn"]
    assert [line["detail"] for line in told if line["subject"] == f"{plugin}@1.0.0"] == [{"reason": "it overpays"}]


async def test_a_job_that_waits_on_a_withdrawn_version_calls_nothing_more(
    stack: Stack, operator: Client, app: Client, approver: Client
) -> None:
    plugin = await waiting_plugin(stack, operator)
    job, request = await waiting_job(app, plugin)
    digest = (await approver.request(job, request))["action_digest"]
    await withdraw(operator, plugin)
    await approver.decide(job, request, "approve", digest=digest)
    view = await app.until_ended(job)
    assert view["status"] == "failed"
    assert stack.effects.calls("pay", job=job) == []


async def test_another_version_takes_the_place_of_a_withdrawn_one(operator: Client, app: Client) -> None:
    plugin = await publish_brisk(operator, fresh_name("gone"))
    await withdraw(operator, plugin)
    await publish_brisk(operator, plugin, version="1.1.0")
    assert (await app.until_ended(await app.accepted(plugin)))["plugin"]["version"] == "1.1.0"


async def test_of_an_unknown_version_nothing_is_withdrawn(stack: Stack, operator: Client, app: Client) -> None:
    plugin = await publish_brisk(operator, fresh_name("gone"))
    for name, version in ((plugin, "2.0.0"), (plugin, "%00"), ("no-such-plugin", "1.0.0"), ("BAD", "1.0.0")):
        response = await operator.http.post(f"/v1/plugins/{name}/versions/{version}/withdrawal", json={"reason": "x"})
        refused(response, 404, "plugin-unknown")
    path = f"/v1/plugins/{plugin}/versions/1.0.0/withdrawal"
    for client in (app, stack.client("approver"), stack.client("operator", scopes=["plugins:publish"])):
        refused(await client.http.post(path, json={"reason": "x"}), 403, "not-permitted")
    await app.accepted(plugin)


@pytest.mark.parametrize(
    "body",
    [{}, {"reason": ""}, {"reason": None}, {"reason": "x" * 2001}, {"reason": CANARY, CANARY: 1}, [], {"reason": "\0"}],
)
async def test_a_withdrawal_says_why(operator: Client, body: object) -> None:
    plugin = await publish_brisk(operator, fresh_name("gone"))
    refused(
        await operator.http.post(f"/v1/plugins/{plugin}/versions/1.0.0/withdrawal", json=body), 422, "input-invalid"
    )
    assert (await operator.get(f"/v1/plugins/{plugin}/versions"))["data"][0]["withdrawn_at"] is None


async def test_upgrade_rollback_upgrade_and_each_job_shows_what_it_ran(
    stack: Stack, operator: Client, app: Client, approver: Client
) -> None:
    plugin = await waiting_plugin(stack, operator)
    waiting, request = await waiting_job(app, plugin)
    one = (await app.status(waiting))["plugin"]
    ran = {waiting: one}
    tools = [tool("look"), tool("pay", "write")]
    await publish_plugin(operator, plugin, [final()], tools=tools, tools_url=stack.effects.url, version="2.0.0")
    url = f"/v1/plugins/{plugin}/release"
    two = {
        **one,
        "version": "2.0.0",
        "digest": (await operator.get(f"/v1/plugins/{plugin}/versions"))["data"][1]["digest"],
    }
    for version, expected, current in (("1.0.0", "2.0.0", one), ("2.0.0", "1.0.0", two)):
        job = await app.accepted(plugin)
        ran[job] = (await app.status(job))["plugin"]
        stale = {"version": "1.0.0", "expected_current": "9.9.9"}
        assert refused(await operator.http.put(url, json=stale), 409, "release-conflict")["current"] == expected
        await operator.put(url, {"version": version, "expected_current": expected})
        job = await app.accepted(plugin)
        assert (await app.status(job))["plugin"] == current
        ran[job] = current
    assert [shown["version"] for shown in ran.values()] == ["1.0.0", "2.0.0", "1.0.0", "1.0.0", "2.0.0"]
    assert {shown["digest"] for shown in ran.values()} == {one["digest"], two["digest"]}
    assert (await approver.decide(waiting, request, "approve")).status_code == 200
    assert (await app.until_ended(waiting))["status"] == "succeeded"
    assert {job: (await app.status(job))["plugin"] for job in ran} == ran
    history = (await operator.get(f"/v1/plugins/{plugin}/releases"))["data"]
    assert [row["version"] for row in history] == ["2.0.0", "1.0.0", "2.0.0", "1.0.0"]
