"""Workspaces: who may make one, what its admin gets, and that nothing of one is seen from another."""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.http.jobs import waiting_job, waiting_plugin
from tests.http.submissions import CANARY, publish_brisk, refused
from tests.http.trail import audit_of
from tests.rig.client import Client, Json, fresh_key
from tests.rig.plugins import fresh_name
from tests.rig.stack import Stack

JOBGATE = Path(sys.executable).with_name("jobgate")
SAME = ("type", "title", "status", "detail", "code", "retryable")


async def new_workspace(stack: Stack, operator: Client, admin: str = "root") -> tuple[str, Client]:
    """A workspace of its own, and its admin."""
    name = fresh_name("ws")
    made = await operator.post("/v1/workspaces", {"name": name, "admin": admin}, expect=201)
    assert (made["name"], made["admin"]) == (name, admin)
    return name, stack.client(admin, workspace=name)


async def test_the_admin_may_do_everything_there_but_decide(stack: Stack, operator: Client) -> None:
    name, root = await new_workspace(stack, operator)
    plugin = await publish_brisk(root, "brisk")
    await root.until_ended(await root.accepted(plugin))
    await root.post("/v1/grants", {"principal": "svc", "actions": ["jobs:submit"], "plugins": ["*"]}, expect=201)
    job, request = await waiting_job(root, await waiting_plugin(stack, root))
    digest = (await root.request(job, request))["action_digest"]
    refused(await root.decide(job, request, "approve", digest=digest), 403, "not-permitted")
    assert (await root.request(job, request))["state"] == "pending"
    # The same name elsewhere is another principal: it has nothing here, and nothing there.
    refused(await stack.client("root").http.get("/v1/grants"), 403, "not-permitted")
    refused(await stack.client("operator", workspace=name).http.get("/v1/grants"), 403, "not-permitted")


async def test_setup_makes_a_first_admin_where_nobody_may_grant_anything(stack: Stack) -> None:
    name = fresh_name("ws")
    root, stranger = stack.client("root", workspace=name), stack.client("stranger", workspace=name)
    refused(await root.http.get("/v1/grants"), 403, "not-permitted")
    for said in ("root is granted every action but jobs:decide", "root has every action but jobs:decide"):
        arguments = ("setup", "--workspace", name, "--admin", "root")
        process = await asyncio.create_subprocess_exec(
            JOBGATE, *arguments, env={**os.environ, **stack.environment}, stdout=asyncio.subprocess.PIPE
        )
        out, _ = await process.communicate()
        assert process.returncode == 0
        assert out.decode().splitlines()[-1] == f"workspace {name}: {said}"
    given = {"principal": "svc", "actions": ["jobs:submit"], "plugins": ["*"]}
    await root.post("/v1/grants", given, expect=201)
    refused(await root.http.post("/v1/workspaces", json={"name": name, "admin": "x"}), 409, "workspace-exists")
    refused(await stranger.http.get("/v1/grants"), 403, "not-permitted")


@pytest.mark.parametrize("name", ["demo", "taken"])
async def test_a_name_that_is_taken_stays_as_it_is(stack: Stack, operator: Client, name: str) -> None:
    if name == "taken":
        name, _ = await new_workspace(stack, operator)
    response = await operator.http.post("/v1/workspaces", json={"name": name, "admin": "intruder"})
    refused(response, 409, "workspace-exists")
    refused(await stack.client("intruder", workspace=name).http.get("/v1/grants"), 403, "not-permitted")


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"name": "ok-name"},
        {"name": "Not-Lower", "admin": "a"},
        {"name": "a.b", "admin": "a"},
        {"name": "", "admin": "a"},
        {"name": "x" * 41, "admin": "a"},
        {"name": 1, "admin": "a"},
        {"name": "ok-name", "admin": f"{CANARY} x"},
        {"name": "ok-name", "admin": None},
        {"name": "ok-name", "admin": "a", CANARY: 1},
        [],
    ],
    ids=str,
)
async def test_what_is_not_a_workspace_is_input_invalid(operator: Client, body: Any) -> None:
    refused(await operator.http.post("/v1/workspaces", json=body), 422, "input-invalid")


async def test_making_one_is_on_both_trails(stack: Stack, operator: Client) -> None:
    name, root = await new_workspace(stack, operator)
    [line] = [line for line in await audit_of(operator) if line["subject"] == name]
    assert (line["actor"], line["action"], line["detail"]) == ("operator", "workspace.created", {"admin": "root"})
    own = [line for line in await audit_of(root) if line["workspace"] is not None]
    assert [(line["workspace"], line["actor"], line["action"], line["subject"]) for line in own] == [
        (name, "demo:operator", "grant.added", "root")
    ]


# ---- isolation


def same_refusal(foreign: httpx2.Response, unknown: httpx2.Response) -> None:
    """Nothing tells one from the other but the request's own id."""
    assert foreign.status_code == unknown.status_code == 404, foreign.text
    first, second = foreign.json(), unknown.json()
    assert {name: first[name] for name in SAME} == {name: second[name] for name in SAME}
    assert first.keys() == second.keys()
    drop = {"x-request-id", "traceparent", "date"}
    headers = [{n: v for n, v in each.headers.items() if n not in drop} for each in (foreign, unknown)]
    assert headers[0] == headers[1]


async def test_all_of_another_workspace_reads_as_unknown(stack: Stack, operator: Client, app: Client) -> None:
    plugin = await waiting_plugin(stack, operator)
    job, request = await waiting_job(app, plugin)
    grant = await operator.post("/v1/grants", {"principal": "svc", "actions": ["*"], "plugins": ["*"]}, expect=201)
    _, root = await new_workspace(stack, operator)
    await root.post("/v1/grants", {"principal": "root", "actions": ["jobs:decide"], "plugins": ["*"]}, expect=201)
    no_job, no_plugin = fresh_key(), fresh_name("none")
    digest = "sha256:" + "0" * 64
    decision: Json = {"decision": "approve", "action_digest": digest}
    asked: list[tuple[str, str, str, Any]] = [
        ("GET", f"/v1/jobs/{job}", f"/v1/jobs/{no_job}", None),
        ("GET", f"/v1/jobs/{job}?after=0", f"/v1/jobs/{no_job}?after=0", None),
        ("GET", f"/v1/jobs/{job}/result", f"/v1/jobs/{no_job}/result", None),
        ("GET", f"/v1/jobs/{job}/events", f"/v1/jobs/{no_job}/events", None),
        ("GET", f"/v1/jobs/{job}/requests/{request}", f"/v1/jobs/{no_job}/requests/{request}", None),
        ("POST", f"/v1/jobs/{job}/cancel", f"/v1/jobs/{no_job}/cancel", None),
        (
            "POST",
            f"/v1/jobs/{job}/requests/{request}/decision",
            f"/v1/jobs/{no_job}/requests/{request}/decision",
            decision,
        ),
        ("GET", f"/v1/operator/jobs/{job}", f"/v1/operator/jobs/{no_job}", None),
        ("DELETE", f"/v1/grants/{grant['grant_id']}", f"/v1/grants/{no_job}", None),
        ("DELETE", "/v1/principals/svc", f"/v1/principals/{no_job}", None),
        ("GET", f"/v1/plugins/{plugin}/versions", f"/v1/plugins/{no_plugin}/versions", None),
        ("PUT", f"/v1/plugins/{plugin}/release", f"/v1/plugins/{no_plugin}/release", {"version": "1.0.0"}),
        (
            "POST",
            f"/v1/plugins/{plugin}/versions/1.0.0/withdrawal",
            f"/v1/plugins/{no_plugin}/versions/1.0.0/withdrawal",
            {"reason": "x"},
        ),
        (
            "POST",
            f"/v1/plugins/{plugin}/versions/1.0.0/promotions",
            f"/v1/plugins/{no_plugin}/versions/1.0.0/promotions",
            {"to": "live", "break_glass": {"reason": "x"}},
        ),
    ]
    for method, foreign, unknown, body in asked:
        answers = [await root.http.request(method, path, json=body) for path in (foreign, unknown)]
        same_refusal(*answers)
    submission: Json = {"plugin": plugin, "input": {}}
    answers = [
        await root.http.post("/v1/jobs", json={**submission, "plugin": name}, headers={"Idempotency-Key": fresh_key()})
        for name in (plugin, no_plugin)
    ]
    same_refusal(*answers)
    for path in ("/v1/jobs", "/v1/requests", "/v1/grants", "/v1/audit", "/v1/usage"):
        shown = (await root.get(path))["data"]
        assert not [item for item in shown if job in str(item) or plugin in str(item)]
    # And it is all still there, untouched.
    assert (await app.status(job))["status"] == "waiting_for_human"
    assert [row["withdrawn_at"] for row in (await operator.get(f"/v1/plugins/{plugin}/versions"))["data"]] == [None]


async def test_one_key_is_two_jobs_in_two_workspaces(stack: Stack, operator: Client, app: Client) -> None:
    _, root = await new_workspace(stack, operator)
    key, plugin = fresh_key(), fresh_name("twin")
    for client in (operator, root):
        await publish_brisk(client, plugin)
    await app.accepted(plugin, {"n": 1}, key=key)
    await root.accepted(plugin, {"n": 2}, key=key)
    fingerprints = {
        (await client.submit(plugin, {"n": n}, key=key)).json()["fingerprint"] for client, n in ((app, 1), (root, 2))
    }
    assert len(fingerprints) == 2
