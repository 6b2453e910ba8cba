"""Grants over HTTP: what is given, what is refused, what taking back ends, and what nothing brings back."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.http.jobs import waiting_job, waiting_plugin
from tests.http.submissions import CANARY, publish_brisk, refused
from tests.http.trail import audit_of
from tests.rig.client import Client, Json, problem
from tests.rig.plugins import fresh_name
from tests.rig.stack import Stack

APP = ["jobs:submit", "jobs:read", "jobs:cancel"]


def someone(word: str = "svc") -> str:
    """A principal that no other test uses."""
    return fresh_name(word)


async def give(operator: Client, principal: str, actions: list[str], plugins: list[str] | None = None, **m: Any) -> str:
    body = {"principal": principal, "actions": actions, "plugins": plugins or ["*"], **m}
    return (await operator.post("/v1/grants", body, expect=201))["grant_id"]


async def listed_by_id(operator: Client) -> dict[str, Json]:
    return {row["grant_id"]: row for row in (await operator.get("/v1/grants"))["data"]}


async def take(operator: Client, grant_id: str) -> Json:
    response = await operator.http.delete(f"/v1/grants/{grant_id}")
    assert response.status_code == 200, response.text
    return response.json()


# ---- giving


async def test_a_grant_lets_its_principal_do_this_on_these_plugins(stack: Stack, operator: Client) -> None:
    plugin, other = [await publish_brisk(operator, fresh_name("grant")) for _ in range(2)]
    principal = someone()
    client = stack.client(principal)
    assert problem(await client.submit(plugin)) == (403, "not-permitted")
    body: Json = {"principal": principal, "actions": [*APP, *APP], "plugins": [plugin]}
    made = await operator.post("/v1/grants", body, expect=201)
    assert {name: made[name] for name in ("principal", "actions", "plugins", "limits", "expires_at", "by")} == {
        "principal": principal,
        "actions": APP,
        "plugins": [plugin],
        "limits": {},
        "expires_at": None,
        "by": "operator",
    }
    assert made["revoked_at"] is None
    await client.until_ended(await client.accepted(plugin))
    assert problem(await client.submit(other)) == (403, "not-permitted")


async def test_a_grant_needs_the_scope_in_the_token_too(stack: Stack, operator: Client) -> None:
    plugin, principal = await publish_brisk(operator, fresh_name("grant")), someone()
    await give(operator, principal, ["*"])
    narrow = stack.client(principal, scopes=["jobs:read"])
    assert problem(await narrow.submit(plugin)) == (403, "not-permitted")
    assert (await stack.client(principal).submit(plugin)).status_code == 202


async def test_limits_and_expiry_hold_and_are_shown(stack: Stack, operator: Client) -> None:
    plugin, principal = await publish_brisk(operator, fresh_name("grant")), someone()
    limits: Json = {"max_steps": 3, "max_cost_usd": "1.50", "max_concurrent_jobs": 2}
    ends = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    grant_id = await give(operator, principal, APP, [plugin], limits=limits, expires_at=ends)
    listed = await listed_by_id(operator)
    assert listed[grant_id]["limits"] == limits
    assert datetime.fromisoformat(listed[grant_id]["expires_at"]) == datetime.fromisoformat(ends)
    asked = await stack.client(principal).submit(plugin, budget={"max_steps": 4})
    assert problem(asked) == (422, "limit-exceeded")


async def test_every_limit_can_be_given_and_read_back(stack: Stack, operator: Client) -> None:
    plugin, principal = await publish_brisk(operator, fresh_name("grant")), someone()
    limits: Json = {
        "max_steps": 3,
        "max_duration_seconds": 60,
        "max_cost_usd": "1.50",
        "max_tokens": 1000,
        "max_concurrent_jobs": 2,
        "max_tokens_per_day": 10_000,
        "max_cost_usd_per_day": "20",
        "tools": ["look"],
    }
    grant_id = await give(operator, principal, APP, limits=limits)
    assert (await listed_by_id(operator))[grant_id]["limits"] == limits
    client = stack.client(principal)
    assert (await client.until_ended(await client.accepted(plugin)))["status"] == "succeeded"


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"principal": ""}, "principal"),
        ({"principal": f"{CANARY} x"}, "principal"),
        ({"principal": 7}, "principal"),
        ({"principal": None}, "principal"),
        ({"actions": []}, "actions"),
        ({"actions": [CANARY]}, "actions"),
        ({"actions": ["JOBS:READ"]}, "actions"),
        ({"actions": ["jobs:*"]}, "actions"),
        ({"actions": "jobs:read"}, "actions"),
        ({"actions": None}, "actions"),
        ({"plugins": []}, "plugins"),
        ({"plugins": ["Not A Name"]}, "plugins"),
        ({"plugins": ["**"]}, "plugins"),
        ({"plugins": [None]}, "plugins"),
        ({"limits": {CANARY: 1}}, "limits"),
        ({"limits": {"max_steps": 0}}, "limits"),
        ({"limits": {"max_steps": "3"}}, "limits"),
        ({"limits": {"max_cost_usd": 1}}, "limits"),
        ({"limits": {"max_cost_usd": "-1"}}, "limits"),
        ({"limits": None}, "limits"),
        ({"expires_at": "2030-01-31"}, "expires_at"),
        ({"expires_at": "2030-01-31T12:00:00"}, "expires_at"),
        ({"expires_at": "2020-01-31T12:00:00Z"}, "expires_at"),
        ({"expires_at": 1_900_000_000}, "expires_at"),
        ({CANARY: 1}, "The body"),
        ({"workspace": "other"}, "The body"),
    ],
    ids=str,
)
async def test_a_faulty_grant_is_refused_by_its_field_and_leaves_none(
    operator: Client, changed: Json, field: str
) -> None:
    principal = someone()
    body = {"principal": principal, "actions": APP, "plugins": ["*"], **changed}
    document = refused(await operator.http.post("/v1/grants", json=body), 422, "input-invalid")
    assert document["detail"].startswith(f"{field}: ")
    assert principal not in str(await operator.get("/v1/grants"))


async def test_star_does_not_say_tools_python_and_both_may_be_given(operator: Client) -> None:
    made = await operator.post(
        "/v1/grants", {"principal": someone(), "actions": ["*", "tools:python"], "plugins": ["*"]}, expect=201
    )
    assert made["actions"] == ["*", "tools:python"]


# ---- who may


@pytest.mark.parametrize("principal", ["app", "approver", "stranger"])
async def test_only_who_has_grants_write_gives_lists_and_takes(stack: Stack, operator: Client, principal: str) -> None:
    grant_id, client = await give(operator, someone(), APP), stack.client(principal)
    asked = {"principal": principal, "actions": ["*"], "plugins": ["*"]}
    for response in (
        await client.http.post("/v1/grants", json=asked),
        await client.http.get("/v1/grants"),
        await client.http.delete(f"/v1/grants/{grant_id}"),
        await client.http.delete("/v1/grants/unknown"),
        await client.http.delete("/v1/principals/operator"),
        await client.http.post("/v1/workspaces", json={"name": fresh_name("ws"), "admin": principal}),
    ):
        refused(response, 403, "not-permitted")
    scoped = stack.client("operator", scopes=["operator:read"])
    refused(await scoped.http.post("/v1/grants", json=asked), 403, "not-permitted")
    refused(await scoped.http.get("/v1/grants"), 403, "not-permitted")


async def test_a_granter_of_one_plugin_reaches_no_other(stack: Stack, operator: Client) -> None:
    granter, plugin = someone("granter"), fresh_name("grant")
    await give(operator, granter, ["grants:write"], [plugin])
    client = stack.client(granter)
    foreign = await give(operator, someone(), APP)
    for plugins in (["*"], [plugin, "another"], ["another"]):
        asked = {"principal": granter, "actions": ["*"], "plugins": plugins}
        refused(await client.http.post("/v1/grants", json=asked), 403, "not-permitted")
    refused(await client.http.delete(f"/v1/grants/{foreign}"), 403, "not-permitted")
    refused(await client.http.delete("/v1/principals/app"), 403, "not-permitted")
    refused(
        await client.http.post("/v1/workspaces", json={"name": fresh_name("ws"), "admin": "a"}), 403, "not-permitted"
    )
    await take(client, await give(client, someone(), APP, [plugin]))


# ---- taking back


async def test_taking_back_is_at_once_and_repeats_with_the_first_time(stack: Stack, operator: Client) -> None:
    plugin, principal = await publish_brisk(operator, fresh_name("grant")), someone()
    grant_id, client = await give(operator, principal, APP), stack.client(principal)
    await client.until_ended(await client.accepted(plugin))
    first = await take(operator, grant_id)
    assert first["revoked_at"] is not None
    assert problem(await client.submit(plugin)) == (403, "not-permitted")
    assert {(await take(operator, grant_id))["revoked_at"] for _ in range(3)} == {first["revoked_at"]}


@pytest.mark.parametrize("grant_id", ["unknown", "grant_" + "0" * 32, "..%2Fx", "x" * 300, "%E2%82%AC"])
async def test_an_unknown_grant_is_404(operator: Client, grant_id: str) -> None:
    refused(await operator.http.delete(f"/v1/grants/{grant_id}"), 404, "not-found")


@pytest.mark.parametrize("name", ["nobody-ever", "%00", "a%20b", "x" * 200])
async def test_a_principal_that_was_never_granted_anything_is_404(operator: Client, name: str) -> None:
    refused(await operator.http.delete(f"/v1/principals/{name}"), 404, "not-found")


async def test_a_principal_loses_all_it_has_and_the_answer_repeats(stack: Stack, operator: Client) -> None:
    plugin, principal = await publish_brisk(operator, fresh_name("grant")), f"svc:{someone()}@example.com/a+b"
    given = [await give(operator, principal, APP, plugins) for plugins in ([plugin], ["*"])]
    client = stack.client(principal)
    await client.until_ended(await client.accepted(plugin))
    first = await operator.http.delete(f"/v1/principals/{principal}")
    assert first.status_code == 200, first.text
    assert [row["grant_id"] for row in first.json()["grants"]] == given
    assert all(row["revoked_at"] for row in first.json()["grants"])
    assert problem(await client.submit(plugin)) == (403, "not-permitted")
    again = await operator.http.delete(f"/v1/principals/{principal.replace('/', '%2F')}")
    assert (again.status_code, again.content) == (200, first.content)


# ---- what ran on it


async def waiting_as(stack: Stack, operator: Client, principal: str, plugin: str) -> tuple[str, str, str]:
    """A grant, a job on it that waits for a person, and its request."""
    grant_id = await give(operator, principal, APP)
    job, request = await waiting_job(stack.client(principal), plugin)
    return grant_id, job, request


async def test_a_waiting_job_ends_with_its_grant_and_nothing_brings_it_back(
    stack: Stack, operator: Client, app: Client, approver: Client
) -> None:
    plugin = await waiting_plugin(stack, operator)
    grant_id, job, request = await waiting_as(stack, operator, principal := someone(), plugin)
    unrelated, its_request = await waiting_job(app, plugin)
    digest = (await approver.request(job, request))["action_digest"]
    revoked_at = (await take(operator, grant_id))["revoked_at"]
    await give(operator, principal, APP)  # at once, before the job has heard of anything
    assert (await operator.get(f"/v1/operator/jobs/{job}"))["authority"]["revoked_at"] == revoked_at
    view = await app.until_ended(job, timeout=20)
    assert (view["status"], view["failure"]["code"]) == ("failed", "authority_revoked")
    assert "authority.revoked" in await app.event_types(job)
    assert (await approver.request(job, request))["state"] == "voided"
    late = problem(await approver.decide(job, request, "approve", digest=digest))
    assert late in {(409, "request-voided"), (409, "job-ended")}
    assert stack.effects.calls("pay", job=job) == []
    # The same hand over the same minute, on a job of somebody else: it waits, and runs when it may.
    assert (await app.status(unrelated))["status"] == "waiting_for_human"
    assert (await approver.decide(unrelated, its_request, "approve")).status_code == 200
    assert (await app.until_ended(unrelated))["status"] == "succeeded"
    assert len(stack.effects.calls("pay", job=unrelated)) == 1


async def test_a_job_that_another_grant_covers_goes_on(
    stack: Stack, operator: Client, app: Client, approver: Client
) -> None:
    plugin = await waiting_plugin(stack, operator)
    grant_id, job, request = await waiting_as(stack, operator, principal := someone(), plugin)
    await give(operator, principal, APP, [plugin])
    await take(operator, grant_id)
    assert (await approver.decide(job, request, "approve")).status_code == 200
    assert (await app.until_ended(job))["status"] == "succeeded"


async def test_revoking_a_principal_ends_all_its_jobs(stack: Stack, operator: Client, app: Client) -> None:
    plugin, principal = await waiting_plugin(stack, operator), someone()
    await give(operator, principal, APP)
    client = stack.client(principal)
    jobs = [job for job, _ in await asyncio.gather(*(waiting_job(client, plugin) for _ in range(3)))]
    assert (await operator.http.delete(f"/v1/principals/{principal}")).status_code == 200
    ended = await asyncio.gather(*(app.until_ended(job, timeout=20) for job in jobs))
    assert {view["failure"]["code"] for view in ended} == {"authority_revoked"}

    lines = [line for line in await audit_of(operator) if line["action"] == "authority.revoked"]
    assert {line["subject"] for line in lines if line["actor"] == "operator"} >= set(jobs)
