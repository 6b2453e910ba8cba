"""The audit trail: every operation that changes something leaves its line, nothing else does, and pages never skip."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx2
import pytest

from tests.http.jobs import waiting_job, waiting_plugin
from tests.http.submissions import publish_brisk, refused
from tests.http.trail import audit_end, audit_of
from tests.rig.client import Client, Json
from tests.rig.plugins import fresh_name
from tests.rig.stack import Stack


async def own_workspace(stack: Stack, operator: Client) -> tuple[str, Client]:
    name = fresh_name("audited")
    await operator.post("/v1/workspaces", {"name": name, "admin": "root"}, expect=201)
    return name, stack.client("root", workspace=name)


def told(lines: list[Json]) -> list[tuple[str, str, str]]:
    return [(line["actor"], line["action"], line["subject"]) for line in lines]


async def test_every_operation_that_changes_something_leaves_its_line(stack: Stack, operator: Client) -> None:
    workspace, root = await own_workspace(stack, operator)
    voter = stack.client("voter", workspace=workspace)
    cursor = await audit_end(root)
    seen: list[Json] = []

    async def leaves(change: Awaitable[Any], *expected: tuple[str, str, str]) -> Any:
        """What the operation answered; its lines and no others are new, in this order."""
        nonlocal cursor
        answer = await change
        lines = await audit_of(root, cursor)
        assert told(lines) == list(expected)
        cursor = await audit_end(root)
        seen.extend(lines)
        return answer

    plugin = await waiting_plugin(stack, root)
    version = f"{plugin}@1.0.0"
    await leaves(
        asyncio.sleep(0),
        ("root", "plugin.published", version),
        ("root", "plugin.deployed", plugin),
        ("root", "release.set", plugin),
        ("root", "promotion.done", version),
    )
    grant = await leaves(
        root.post("/v1/grants", {"principal": "voter", "actions": ["jobs:decide"], "plugins": ["*"]}, expect=201),
        ("root", "grant.added", "voter"),
    )
    job, request = await leaves(waiting_job(root, plugin))
    asked = f"{job}/{request}"
    await leaves(
        voter.decide(job, request, "approve"),
        ("voter", "request.voted", asked),
        ("voter", "request.decided", asked),
    )
    await leaves(root.until_ended(job))
    stopped, _ = await leaves(waiting_job(root, plugin))
    await leaves(root.cancel(stopped), ("root", "job.stopped", stopped))
    body = {"principal": "svc", "scopes": ["jobs:read"]}
    key = await leaves(root.post("/v1/api-keys", body, expect=201), ("root", "api_key.added", "svc"))
    await leaves(root.http.delete(f"/v1/api-keys/{key['key_id']}"), ("root", "api_key.revoked", "svc"))
    await leaves(root.http.delete(f"/v1/grants/{grant['grant_id']}"), ("root", "grant.revoked", "voter"))
    asked_for = {"principal": "svc", "actions": ["jobs:submit", "jobs:read"], "plugins": ["*"]}
    await leaves(root.post("/v1/grants", asked_for, expect=201), ("root", "grant.added", "svc"))
    lost, _ = await leaves(waiting_job(stack.client("svc", workspace=workspace), plugin))
    await leaves(
        root.http.delete("/v1/principals/svc"),
        ("root", "principal.revoked", "svc"),
        ("root", "grant.revoked", "svc"),
        ("root", "authority.revoked", lost),
    )
    await leaves(root.until_ended(lost))
    made = fresh_name("made")
    await leaves(
        root.post("/v1/workspaces", {"name": made, "admin": "x"}, expect=201), ("root", "workspace.created", made)
    )
    why = {"reason": "a test"}
    await leaves(
        root.post(f"/v1/plugins/{plugin}/versions/1.0.0/withdrawal", why), ("root", "plugin.withdrawn", version)
    )
    # To which version: every line of the catalog names it, in its subject or its detail.
    catalog = {
        line["action"]: line for line in seen if line["action"].startswith(("plugin.", "release.", "promotion."))
    }
    assert catalog["release.set"]["detail"] == {"version": "1.0.0"}
    assert catalog["plugin.deployed"]["detail"]["revision"] == 1
    assert catalog["plugin.published"]["detail"]["digest"].startswith("sha256:")
    assert catalog["promotion.done"]["detail"]["phase"] == "live"
    assert catalog["plugin.withdrawn"]["detail"] == why
    assert all(line["workspace"] == workspace for line in seen)


async def test_what_is_refused_repeated_or_read_leaves_no_line(stack: Stack, operator: Client) -> None:
    workspace, root = await own_workspace(stack, operator)
    plugin = await waiting_plugin(stack, root)
    job, request = await waiting_job(root, plugin)
    grant = await root.post("/v1/grants", {"principal": "p", "actions": ["jobs:read"], "plugins": ["*"]}, expect=201)
    url = f"/v1/plugins/{plugin}"
    inert: list[Callable[[], Awaitable[httpx2.Response]]] = [
        lambda: root.http.put(f"{url}/release", json={"version": "1.0.0"}),
        lambda: root.http.put(f"{url}/release", json={"version": "1.0.0", "expected_current": "2.0.0"}),
        lambda: root.http.put(f"{url}/deployment", json={"plugin": plugin}),
        lambda: root.http.post("/v1/plugins", json={"files": {}}),
        lambda: root.http.post("/v1/grants", json={"principal": "p", "actions": [], "plugins": ["*"]}),
        lambda: root.http.delete(f"/v1/grants/{grant['grant_id']}"),
        lambda: root.http.delete("/v1/grants/unknown"),
        lambda: root.http.delete("/v1/principals/unknown"),
        lambda: root.http.post("/v1/workspaces", json={"name": workspace, "admin": "x"}),
        lambda: root.decide(job, request, "approve"),
        lambda: root.http.post(f"{url}/versions/9.9.9/withdrawal", json={"reason": "x"}),
        lambda: root.http.post(f"{url}/versions/1.0.0/promotions", json={"to": "live_canary"}),
        lambda: root.http.get("/v1/grants"),
        lambda: root.http.get("/v1/usage"),
        lambda: root.http.get(f"/v1/operator/jobs/{job}"),
    ]
    await root.http.delete(f"/v1/grants/{grant['grant_id']}")
    before = await audit_of(root)
    for ask in inert:
        await ask()
    assert await audit_of(root) == before


async def test_pages_follow_each_other_and_the_last_cursor_reads_on(stack: Stack, operator: Client) -> None:
    _, root = await own_workspace(stack, operator)
    await publish_brisk(root, "pages")
    whole = await audit_of(root)
    one_by_one: list[Json] = []
    after, more = None, True
    while more:
        page = await root.get("/v1/audit", params={"limit": 1, **({"after": after} if after else {})})
        one_by_one += page["data"]
        after, more = page["next_cursor"], page["has_more"]
    assert one_by_one == whole
    empty = await root.get("/v1/audit", params={"after": after})
    assert (empty["data"], empty["next_cursor"], empty["has_more"]) == ([], after, False)
    await root.post("/v1/workspaces", {"name": fresh_name("later"), "admin": "x"}, expect=201)
    new = (await root.get("/v1/audit", params={"after": after}))["data"]
    assert [line["action"] for line in new] == ["workspace.created"]


async def test_lines_of_the_runtime_are_everybodys(stack: Stack, operator: Client) -> None:
    _, root = await own_workspace(stack, operator)
    runtime = [line for line in await audit_of(root) if line["workspace"] is None]
    assert ("setup", "promotion.done", "runtime") in told(runtime)
    assert runtime == [line for line in await audit_of(operator) if line["workspace"] is None]


@pytest.mark.parametrize("cursor", ["", "0", "1", "xyz", "am9iczox", "YXVkaXQ6MA==", "YXVkaXQ6LTE=", "a" * 200])
async def test_a_cursor_of_another_list_is_refused(operator: Client, cursor: str) -> None:
    refused(await operator.http.get("/v1/audit", params={"after": cursor}), 400, "cursor-invalid")


@pytest.mark.parametrize("limit", ["0", "501", "-1", "x", ""])
async def test_a_limit_out_of_bounds_is_refused(operator: Client, limit: str) -> None:
    refused(await operator.http.get("/v1/audit", params={"limit": limit}), 422, "input-invalid")


async def test_only_operators_read_the_trail(stack: Stack, app: Client, approver: Client) -> None:
    for client in (app, approver, stack.client("stranger"), stack.client("operator", scopes=["grants:write"])):
        refused(await client.http.get("/v1/audit"), 403, "not-permitted")


async def test_racing_votes_leave_the_lines_of_one(stack: Stack, operator: Client, app: Client) -> None:
    job, request = await waiting_job(app, await waiting_plugin(stack, operator))
    approver = stack.client("approver")
    digest = (await approver.request(job, request))["action_digest"]
    cursor = await audit_end(operator)
    await asyncio.gather(*(approver.decide(job, request, "approve", digest=digest) for _ in range(8)))
    mine = [line for line in await audit_of(operator, cursor) if line["subject"] == f"{job}/{request}"]
    assert [line["action"] for line in mine] == ["request.voted", "request.decided"]
