"""A story in which everybody throws secrets back: tools in every place and spelling, a model, and callers by mistake.

It runs jobs to every kind of end and reads all there is to read; what was left is for `test_leaks.py` to search.
"""

import base64
import json
from typing import Any
from urllib.parse import quote

from tests.recovery.grounds import READS_RUN_WRITES_ASK, published
from tests.recovery.needles import Ear
from tests.rig.client import Client, fresh_key
from tests.rig.effect_log import Answer, Behaviour
from tests.rig.model_server import Completion, Failure, ModelServer
from tests.rig.plugins import call, final, fresh_name, publish_plugin, tool, turn
from tests.rig.stack import Stack

CREDENTIAL = 'canary/tool+4b1d&"q"=='
MODEL_KEY = "canary-model-c81e77"
MISPLACED = "canary-misplaced-55e0"
"""A secret that its owner sends where none belongs: in a path, a query, a body, a header."""

BEARER = f"Bearer {CREDENTIAL}"
SAYS_IT: dict[str, list[Behaviour]] = {
    "in-body": [Behaviour(answer=Answer.ECHO_BODY)],
    "in-headers": [Behaviour(answer=Answer.ECHO_HEADERS)],
    "in-error": [Behaviour(answer=Answer.ECHO_ERROR, times=1)],
    "in-refusal": [Behaviour(status=409, body={"error": f"no {BEARER}", CREDENTIAL: [CREDENTIAL]})],
    "in-spellings": [
        Behaviour(
            body={
                "base64": [base64.b64encode(f"{before}{BEARER}".encode()).decode() for before in ("", "a", "ab")],
                "url": quote(CREDENTIAL, safe=""),
                "json": json.dumps({"nested": CREDENTIAL}),
            }
        )
    ],
    "in-redirect": [Behaviour(status=302, headers={"Location": f"/{quote(CREDENTIAL, safe='')}"})],
}


async def story(stack: Stack, app: Client, approver: Client) -> list[str]:
    """Every echo as a read and as a write, a rejection, a cancel during a call."""
    reads = [turn(*(call(name) for name in SAYS_IT)), final({"got": "{{ results }}"})]
    writes = [
        turn(call("in-body")),
        turn(call("in-refusal")),
        turn(call("in-headers")),
        final({"got": "{{ results }}"}),
    ]
    failing = [turn(call("in-error")), final()]
    asked = [turn(call("in-body", {"n": 1})), final()]
    stack.effects.set_behaviour("held", Behaviour(answer=Answer.HOLD, body={"said": CREDENTIAL}))
    jobs = [
        await app.accepted(await published(stack, reads, *map(tool, SAYS_IT))),
        await app.accepted(
            await published(stack, writes, *(tool(name, "write") for name in ("in-body", "in-refusal", "in-headers")))
        ),
        await app.accepted(
            rejected := await published(stack, asked, tool("in-body", "write"), policy=READS_RUN_WRITES_ASK)
        ),
    ]
    await app.until_ended(jobs[0], 60)
    stack.effects.set_behaviour("in-error", Behaviour(answer=Answer.ECHO_ERROR))
    jobs.append(await app.accepted(await published(stack, failing, tool("in-error", "write"))))
    canceled = await app.accepted(await published(stack, [turn(call("held")), final()], tool("held", "write")))
    await stack.effects.wait_for_calls("held")
    await app.cancel(canceled)
    stack.effects.release("held")
    [request] = await app.until_request(jobs[2])
    assert (await approver.decide(jobs[2], request, "reject", reason="Not this one.")).is_success
    waiting = await app.accepted(rejected)
    await app.until_request(waiting)
    await app.cancel(waiting)
    ends = {job: (await app.until_ended(job, 60))["status"] for job in (*jobs, canceled, waiting)}
    assert list(ends.values()) == ["succeeded", "succeeded", "succeeded", "failed", "canceled", "canceled"], ends
    assert all(sent.header("authorization") == BEARER for sent in stack.effects.calls())
    return list(ends)


async def model_story(stack: Stack, operator: Client, app: Client, model: ModelServer) -> list[str]:
    """A model that answers with its key, and one that fails with it."""
    name = fresh_name("model")
    credential = {"ref": "env:MODEL_KEY"}
    connection = {"base_url": model.base_url, "allow_private": True, "credential": credential}
    deployment = {"model": "openai-chat:test-model", "model_connection": connection}
    await publish_plugin(operator, name, [final()], deployment=deployment)
    model.script(Completion(text=f"Your key is {MODEL_KEY}."))
    said = await app.accepted(name)
    assert (await app.until_ended(said, 30))["status"] == "succeeded"
    model.script(Failure(401, message=f"Incorrect API key provided: {MODEL_KEY}"))
    failed = await app.accepted(name)
    assert (await app.until_ended(failed, 30))["failure"]["code"] == "model_failed"
    assert all(request.authorized for request in model.requests)
    return [said, failed]


def mistakes() -> list[tuple[int, str, str, dict[str, Any]]]:
    """Secrets where none belongs, each with the status of its refusal."""
    key, json_type = {"Idempotency-Key": fresh_key()}, {"Content-Type": "application/json"}
    body: dict[str, Any] = {"plugin": "p", "input": {}}
    return [
        (422, "POST", "/v1/jobs", {"json": {**body, MISPLACED: 1}, "headers": key}),
        (422, "POST", "/v1/jobs", {"content": f'{{"{MISPLACED}', "headers": {**key, **json_type}}),
        (415, "POST", "/v1/jobs", {"content": MISPLACED, "headers": {**key, "Content-Type": MISPLACED}}),
        (400, "POST", "/v1/jobs", {"json": body, "headers": {"Idempotency-Key": f"{MISPLACED} x"}}),
        (422, "GET", "/v1/jobs", {"params": {"token": MISPLACED}}),
        (404, "GET", f"/v1/jobs/{MISPLACED}", {}),
        (404, "GET", f"/{MISPLACED}", {}),
        (404, "GET", "/v1/jobs/x", {"params": {"after": "0"}, "headers": {"Prefer": MISPLACED}}),
        (200, "GET", "/livez", {"headers": {"X-Request-Id": f"{MISPLACED} !", "traceparent": MISPLACED}}),
        (401, "GET", "/v1/jobs", {"headers": {"Authorization": f"Bearer {MISPLACED}"}}),
        (401, "GET", "/v1/jobs", {"headers": {"Authorization": f"Basic {MISPLACED}"}}),
    ]


async def make_mistakes(app: Client, ear: Ear) -> None:
    for status, method, path, options in mistakes():
        answer = await app.http.request(method, path, **options)
        assert answer.status_code == status, (method, path, answer.status_code)
    # The names that `Ear` gives to answers hold the path; what was sent is no leak.
    ear.answers[:] = [(name.replace(MISPLACED, "*"), answer) for name, answer in ear.answers]


async def read_all(app: Client, approver: Client, operator: Client, ear: Ear, jobs: list[str]) -> None:
    """Every read of every job, so that every answer is heard."""
    for job in jobs:
        await app.events(job)
        await app.http.get(f"/v1/jobs/{job}/result")
        ear.heard(f"stream of {job}", json.dumps([[one.id, one.type, one.event] for one in await app.streamed(job)]))
        for event in await app.events(job):
            if event["type"] == "request.opened":
                await approver.request(job, event["data"]["request_id"])
    await app.get("/v1/jobs")
    await approver.get("/v1/requests")
    for path in ("/livez", "/readyz"):
        await app.get(path)
    assert (await operator.http.get("/metrics")).status_code == 200
