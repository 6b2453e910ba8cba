"""Who, what and by which credential: on every log line of real processes, as soon as it is known. Never a token."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.http.jobs import plugin_of
from tests.http.submissions import body_with, execution, publish_brisk, refused, submit_bytes
from tests.rig.client import Client, Json, fresh_key
from tests.rig.plugins import call, final, fresh_name, tool, turn
from tests.rig.process import Process
from tests.rig.stack import Stack, free_port
from tests.rig.waiting import wait_until


def lines_of(process: Process, **wanted: Any) -> list[Json]:
    """Its log lines that say all of this."""
    entries: list[Json] = [json.loads(line) for line in process.output.splitlines() if line.startswith("{")]
    return [entry for entry in entries if all(entry.get(name) == value for name, value in wanted.items())]


@pytest.mark.parametrize("kind", ["token", "key"])
async def test_a_line_of_a_request_names_its_caller_and_the_credential(
    stack: Stack, operator: Client, kind: str
) -> None:
    brisk = await publish_brisk(operator, fresh_name("logs"))
    new = await operator.post("/v1/api-keys", {"principal": "app"}, expect=201)
    credential = new["key"] if kind == "key" else stack.token("app")
    job, request_id = fresh_key(), fresh_key()
    await (await stack.engine()).start_workflow("Foreign", id=f"demo.{job}", task_queue="nobody")
    async with Client(stack.apis[0].url, credential) as app:
        response = await submit_bytes(app, body_with(brisk), job, X_Request_Id=request_id)
    refused(response, 409, "key-taken-outside")
    [line] = lines_of(stack.apis[0], request_id=request_id)
    assert (line["principal"], line["workspace"], line["job"]) == ("app", "demo", job)
    assert line["token_id"] == (new["key_id"] if kind == "key" else line["token_id"])
    assert 8 < len(line["token_id"]) <= 64
    for process in (*stack.apis, *stack.workers):
        assert credential.rpartition("_" if kind == "key" else ".")[2] not in process.output
    await (await execution(stack, job)).terminate()


async def test_a_caller_is_named_in_the_lines_of_their_own_request_only(stack: Stack, operator: Client) -> None:
    """Two callers on one connection, as behind a proxy."""
    brisk = await publish_brisk(operator, fresh_name("logs"))
    asked: dict[str, str] = {}
    async with Client(stack.apis[0].url, None) as proxy:
        for principal in ("app", "operator", "app"):
            job, request_id = fresh_key(), fresh_key()
            asked[request_id] = principal
            await (await stack.engine()).start_workflow("Foreign", id=f"demo.{job}", task_queue="nobody")
            bearer = f"Bearer {stack.token(principal)}"
            await submit_bytes(proxy, body_with(brisk), job, X_Request_Id=request_id, Authorization=bearer)
            await (await execution(stack, job)).terminate()
    named = {one: [line["principal"] for line in lines_of(stack.apis[0], request_id=one)] for one in asked}
    assert named == {one: [principal] for one, principal in asked.items()}
    [listening] = lines_of(stack.apis[0], event="listening")
    assert "principal" not in listening


async def test_a_step_line_names_job_principal_initiator_and_plugin(
    stack: Stack, operator: Client, app: Client
) -> None:
    connection = {"base_url": f"http://127.0.0.1:{free_port()}", "allow_private": True}
    plugin = await plugin_of(
        stack, operator, [turn(call("look")), final()], tool("look"), deployment={"connections": {"tools": connection}}
    )
    job = await app.accepted(plugin, timeout_seconds=30, initiator={"kind": "user", "id": "cust_9"})
    own = await app.accepted(plugin, timeout_seconds=30)
    for key, initiator in ((job, "user:cust_9"), (own, None)):
        [line, *_] = await wait_until(
            lambda key=key: lines_of(stack.workers[0], event="step ended", job=f"demo.{key}"),
            what="the step failed and its line is written",
        )
        assert line["activity"] == "tool"
        assert (line["principal"], line["workspace"], line["plugin"]) == ("app", "demo", f"{plugin}@1.0.0")
        assert line.get("initiator") == initiator
        assert line["outcome"] == "connect_refused"
        assert datetime.fromisoformat(line["timestamp"]) <= datetime.now(UTC)
        await app.cancel(key)
