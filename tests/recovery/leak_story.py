"""A story in which everybody throws secrets back: tools in every place and spelling, a model, and callers by mistake.

It runs jobs to every kind of end; what was left is for `test_leaks.py` to search.
"""

import base64
import json
from urllib.parse import quote

from tests.recovery.grounds import READS_RUN_WRITES_ASK, published
from tests.rig.client import Client
from tests.rig.effect_log import Answer, Behaviour
from tests.rig.model_server import Completion, Failure, ModelServer, ToolCall
from tests.rig.plugins import ALLOW_ALL, call, final, fresh_name, publish_plugin, tool, turn
from tests.rig.plugins import CREDENTIAL as TOOLS_CREDENTIAL
from tests.rig.stack import Stack
from tests.rig.waiting import wait_until

CREDENTIAL = 'canary/tool+4b1d&"q"=='
MODEL_KEY = "canary-model-c81e77"

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
    await app.give_up(jobs[3], approver, 60)
    ends = {job: (await app.until_ended(job, 60))["status"] for job in (*jobs, canceled, waiting)}
    assert list(ends.values()) == ["succeeded", "succeeded", "succeeded", "failed", "canceled", "canceled"], ends
    assert all(sent.header("authorization") == BEARER for name in SAYS_IT for sent in stack.effects.calls(name))
    return list(ends)


async def model_story(stack: Stack, operator: Client, app: Client, model: ModelServer, session: str) -> list[str]:
    """A session whose model answers with its key, calls a tool with it, and fails with it."""
    name = fresh_name("model")
    credential = {"ref": "env:MODEL_KEY"}
    deployment = {
        "model": "openai-chat:test-model",
        "model_connection": {"base_url": model.base_url, "allow_private": True, "credential": credential},
        "connections": {
            "tools": {"base_url": stack.effects.url, "allow_private": True, "credential": TOOLS_CREDENTIAL}
        },
    }
    tools = [tool("in-args", method="POST")]
    await publish_plugin(
        operator,
        name,
        [final()],
        tools=tools,
        policy=ALLOW_ALL,
        manifest={"services": ["tools"]},
        deployment=deployment,
    )
    escaped = json.dumps({"note": MODEL_KEY}).replace("canary", "\\u0063anary")
    calls = [
        ToolCall("in-args", {"note": MODEL_KEY, MODEL_KEY: [base64.b64encode(MODEL_KEY.encode()).decode()]}),
        ToolCall("in-args", escaped),
        ToolCall(MODEL_KEY, {"note": 1}),
    ]
    model.script(
        Completion(text=f"Your key is {MODEL_KEY}."),
        Completion(text=f"Trying {MODEL_KEY}.", calls=calls),
        Completion(text=f"It was Bearer {MODEL_KEY}."),
        Failure(401, message=f"Incorrect API key provided: {MODEL_KEY}", headers={"X-Key": MODEL_KEY}),
    )
    jobs = list[str]()
    for code in (None, None, "model_failed"):
        jobs.append(await app.accepted(name, {"ask": len(jobs)}, session=session))
        view = await app.until_ended(jobs[-1], 30)
        assert (view["failure"]["code"] if view["failure"] else None) == code, view
        await session_is_free(app, session)
    assert all(request.authorized for request in model.requests)
    assert len(model.requests) == 4
    assert len(stack.effects.calls("in-args")) == 2
    assert not [sent for sent in stack.effects.calls("in-args") if MODEL_KEY.encode() in sent.body]
    return jobs


async def session_is_free(app: Client, session: str) -> None:
    async def free() -> bool:
        return (await app.get(f"/v1/sessions/{session}"))["open_job"] is None

    await wait_until(free, what="the session takes the next job")
