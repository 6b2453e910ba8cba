"""One job as an operator sees it: attempts, workers, effects, decisions, authority; never content, never a secret."""

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest

from tests.conftest import FreshStack
from tests.http.jobs import history_length, plugin_of, waiting_job, waiting_plugin
from tests.http.submissions import publish_brisk, refused
from tests.rig.client import Client, Json, fresh_key
from tests.rig.plugins import call, final, fresh_name, tool, turn
from tests.rig.stack import SECRETS, Stack
from tests.rig.waiting import wait_until


async def inspect(operator: Client, job: str) -> Json:
    return await operator.get(f"/v1/operator/jobs/{job}")


def steps(shown: Json) -> list[tuple[Any, ...]]:
    """The attempts at model and tool steps."""
    return [
        (each["activity"], each["step"], each["tool"], each["attempt"], each["outcome"], each["code"])
        for each in shown["attempts"]
        if each["activity"] in ("model", "tool")
    ]


async def test_a_job_that_asked_and_wrote_is_told_whole(
    stack: Stack, operator: Client, app: Client, approver: Client
) -> None:
    plugin = await waiting_plugin(stack, operator)
    initiator = {"kind": "user", "id": "cust_9"}
    job, request = await waiting_job(app, plugin, initiator=initiator, input={"word": "canary-content-77"})
    open_ = await inspect(operator, job)
    assert (open_["status"], open_["decisions"][0]["decision"], open_["effects"]) == ("waiting_for_human", None, [])
    assert [item["request_id"] for item in open_["pending"]] == [request]
    await approver.decide(job, request, "approve")
    view = await app.until_ended(job)
    shown = await inspect(operator, job)
    assert steps(shown) == [
        ("model", 1, None, 1, "completed", None),
        ("tool", 1, "look", 1, "completed", None),
        ("model", 3, None, 1, "completed", None),
        ("tool", 3, "pay", 1, "completed", None),
        ("model", 5, None, 1, "completed", None),
    ]
    worker = f"{stack.workers[0].pid}@"
    assert all(each["worker"].startswith(worker) for each in shown["attempts"])
    times = [(each["scheduled_at"], each["started_at"], each["ended_at"]) for each in shown["attempts"]]
    assert all(
        tuple(sorted(map(datetime.fromisoformat, each))) == tuple(map(datetime.fromisoformat, each)) for each in times
    )
    [lane] = shown["lanes"]
    assert (lane["lane"], {each["task_queue"] for each in shown["attempts"]}) == ("default", {lane["task_queue"]})
    assert any(poller["worker"].startswith(worker) for poller in lane["pollers"])
    [effect] = shown["effects"]
    assert (effect["tool"], effect["state"], effect["epoch"], effect["attempt"], effect["request_id"]) == (
        "pay",
        "confirmed",
        1,
        1,
        request,
    )
    assert effect["effect_id"] == stack.effects.calls("pay", job=job)[0].idempotency_key
    assert effect["sent_at"] <= effect["finished_at"]
    [decision] = shown["decisions"]
    assert (decision["request_id"], decision["decision"], decision["decided_by"]) == (request, "approve", ["approver"])
    assert [(vote["principal"], vote["decision"]) for vote in decision["votes"]] == [("approver", "approve")]
    assert (shown["principal"], shown["submitted_by"], shown["initiator"], shown["credential"]) == (
        "app",
        "app",
        initiator,
        None,
    )
    workload = shown["workload"]
    assert {"name": workload["plugin"], "version": workload["version"], "digest": workload["digest"]} == view["plugin"]
    assert (workload["model"], workload["snapshot"][:7]) == ("scripted:script.yaml", "sha256:")
    authority = shown["authority"]
    assert (authority["principal"], authority["revoked_at"], authority["revoked_reason"]) == ("app", None, None)
    assert authority["minted_at"] < authority["expires_at"]
    assert (shown["status"], shown["usage"], shown["stop"], shown["attempts_complete"]) == (
        "succeeded",
        view["usage"],
        None,
        True,
    )
    assert shown["engine"]["workflow_id"] == f"demo.{job}"
    assert shown["engine"]["history_length"] == await history_length(stack, job)
    text = json.dumps(shown)
    assert "canary-content-77" not in text
    assert not [secret for secret in SECRETS.values() if secret in text]


async def test_attempts_that_failed_say_their_code_and_no_text(stack: Stack, operator: Client, app: Client) -> None:
    script = [turn(call("look"), fail={"status": 500, "times": 1}), final()]
    plugin = await plugin_of(stack, operator, script, tool("look"))
    job = await app.accepted(plugin)
    await app.until_ended(job)
    shown = await inspect(operator, job)
    assert steps(shown)[:2] == [
        ("model", 1, None, 1, "failed", "unavailable"),
        ("model", 1, None, 2, "completed", None),
    ]
    assert "message" not in json.dumps(shown["attempts"])


async def test_a_step_in_flight_names_its_worker(stack: Stack, operator: Client, app: Client) -> None:
    plugin = await plugin_of(stack, operator, [final(delay_seconds=30)])
    job = await app.accepted(plugin)

    async def running() -> Json | None:
        found = [each for each in (await inspect(operator, job))["attempts"] if each["outcome"] == "running"]
        return found[0] if found else None

    attempt = await wait_until(running, 20, every=0.2, what="the model step runs")
    assert (attempt["activity"], attempt["step"], attempt["ended_at"]) == ("model", 1, None)
    assert attempt["worker"].startswith(f"{stack.workers[0].pid}@")
    assert attempt["started_at"] is not None
    await app.cancel(job)
    await app.until_ended(job)
    shown = await inspect(operator, job)
    assert shown["stop"]["by"] == "app"
    assert shown["status"] == "canceled"


async def test_the_trace_is_that_of_the_submission(operator: Client, app: Client) -> None:
    plugin, trace = await publish_brisk(operator, fresh_name("traced")), "4bf92f3577b34da6a3ce929d0e0e4736"
    response = await app.http.post(
        "/v1/jobs",
        json={"plugin": plugin, "input": {}},
        headers={"Idempotency-Key": fresh_key(), "traceparent": f"00-{trace}-00f067aa0ba902b7-01"},
    )
    assert (await inspect(operator, response.json()["job_id"]))["trace_id"] == trace


async def test_a_revoked_job_says_when_and_why(stack: Stack, operator: Client, app: Client) -> None:
    principal = fresh_name("svc")
    grant = {"principal": principal, "actions": ["jobs:submit", "jobs:read"], "plugins": ["*"]}
    await operator.post("/v1/grants", grant, expect=201)
    job, _ = await waiting_job(stack.client(principal), await waiting_plugin(stack, operator))
    await operator.http.delete(f"/v1/principals/{principal}")
    await app.until_ended(job)
    shown = await inspect(operator, job)
    assert shown["authority"]["revoked_at"] is not None
    assert shown["authority"]["revoked_reason"]
    assert shown["failure"]["code"] == "authority_revoked"


async def test_who_may_look_and_what_is_unknown(stack: Stack, operator: Client, app: Client, approver: Client) -> None:
    job = await app.accepted(await publish_brisk(operator, fresh_name("seen")))
    for client in (app, approver, stack.client("stranger"), stack.client("operator", scopes=["jobs:read"])):
        refused(await client.http.get(f"/v1/operator/jobs/{job}"), 403, "not-permitted")
    for unknown in (fresh_key(), "%00", "x" * 201, "---"):
        refused(await operator.http.get(f"/v1/operator/jobs/{unknown}"), 404, "not-found")
    elsewhere = fresh_name("lens")
    grant = {"principal": elsewhere, "actions": ["operator:read"], "plugins": ["another"]}
    await operator.post("/v1/grants", grant, expect=201)
    refused(await stack.client(elsewhere).http.get(f"/v1/operator/jobs/{job}"), 403, "not-permitted")


async def test_looking_changes_nothing(stack: Stack, operator: Client, app: Client) -> None:
    job, _ = await waiting_job(app, await waiting_plugin(stack, operator))
    before = await history_length(stack, job)
    first = await inspect(operator, job)
    second = await inspect(operator, job)
    moving = {"as_of": None, "lanes": None}
    assert {**first, **moving} == {**second, **moving}
    assert await history_length(stack, job) == before


async def test_it_needs_no_worker_and_a_purged_job_is_gone(fresh_stack: FreshStack) -> None:
    stack = await fresh_stack(settings={"JOBGATE_TEMPORAL_UI_URL": "http://ui.example:8233/"})
    operator, app = stack.client("operator"), stack.client("app")
    plugin = await waiting_plugin(stack, operator)
    ended = await app.accepted(await publish_brisk(operator, fresh_name("ended")))
    await app.until_ended(ended)
    job, request = await waiting_job(app, plugin)
    pid = stack.workers[0].pid
    stack.workers[0].kill()
    queued = await app.accepted(plugin)
    shown = await inspect(operator, job)
    assert (shown["status"], [item["request_id"] for item in shown["pending"]]) == ("waiting_for_human", [request])
    assert {each["worker"].partition("@")[0] for each in shown["attempts"]} == {str(pid)}
    run = shown["engine"]["run_id"]
    assert shown["temporal_url"] == f"http://ui.example:8233/namespaces/jobgate/workflows/demo.{job}/{run}/history"
    waiting = await inspect(operator, queued)
    assert (waiting["status"], waiting["attempts"], waiting["executed"]) == ("queued", [], "no")
    engine = await stack.engine()
    gone = WorkflowExecution(workflow_id=f"demo.{ended}")
    await engine.workflow_service.delete_workflow_execution(
        DeleteWorkflowExecutionRequest(namespace=engine.namespace, workflow_execution=gone)
    )

    async def purged() -> bool:
        return (await operator.http.get(f"/v1/operator/jobs/{ended}")).status_code == 410

    await wait_until(purged, 20, what="the execution is gone")
    document = refused(await operator.http.get(f"/v1/operator/jobs/{ended}"), 410, "job-expired")
    assert document["receipt"]["job_id"] == ended


async def test_attempts_are_told_over_every_roll_over(fresh_stack: FreshStack) -> None:
    stack = await fresh_stack(settings={"JOBGATE_ROLL_OVER_AFTER_EVENTS": "6"})
    operator, app = stack.client("operator"), stack.client("app")
    plugin = await plugin_of(stack, operator, [*(turn(call("look")) for _ in range(6)), final()], tool("look"))
    job = await app.accepted(plugin)
    view = await app.until_ended(job)
    shown = await inspect(operator, job)
    calls = steps(shown)
    assert [each[0] for each in calls] == ["model", "tool"] * 6 + ["model"]
    assert len(calls) == view["usage"]["steps"]
    runs = list(dict.fromkeys(each["run_id"] for each in shown["attempts"]))
    assert len(runs) > 1
    assert runs[-1] == shown["engine"]["run_id"]
    assert shown["attempts_complete"] is True


@pytest.mark.parametrize("names", [("look", "look"), ("a", "b", "c")])
async def test_parallel_calls_are_told_apart(stack: Stack, operator: Client, app: Client, names: Sequence[str]) -> None:
    script = [turn(*(call(name, {"n": n}) for n, name in enumerate(names))), final()]
    plugin = await plugin_of(stack, operator, script, *(tool(name) for name in dict.fromkeys(names)))
    job = await app.accepted(plugin)
    await app.until_ended(job)
    calls = [each for each in (await inspect(operator, job))["attempts"] if each["activity"] == "tool"]
    assert sorted((each["call"], each["tool"]) for each in calls) == sorted(enumerate(names, calls[0]["call"]))
