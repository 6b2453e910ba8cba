"""What is said in a session: the next job's model hears all of it, and its users read their part of it, in order."""

import json
from collections.abc import Generator
from typing import Any

import pytest

from tests.http.jobs import plugin_of, terminate
from tests.http.test_sessions import fresh_session, in_turn
from tests.rig.client import Client, Json
from tests.rig.effect_log import Behaviour, EffectLog
from tests.rig.model_server import Completion, Failure, ModelServer, ToolCall
from tests.rig.plugins import call, final, tool, turn
from tests.rig.stack import SECRETS, Stack

ANSWER = {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}}
HIDDEN = "hidden-from-users"


@pytest.fixture(scope="module")
def model() -> Generator[ModelServer]:
    with ModelServer(api_key=SECRETS["TOOL_TOKEN"]) as server:
        yield server


async def thinking_plugin(stack: Stack, operator: Client, model: ModelServer, **options: Any) -> str:
    """A plugin with a real model and one tool."""
    connection = {"base_url": model.base_url, "allow_private": True, "credential": {"ref": "env:TOOL_TOKEN"}}
    deployment = {
        "model": "openai-chat:test-model",
        "model_connection": connection,
        "price": {"input_per_million_usd": "10", "output_per_million_usd": "100"},
    }
    return await plugin_of(stack, operator, [final()], tool("look"), deployment=deployment, **options)


async def messages(app: Client, session: str, **asked: Any) -> Json:
    return await app.get(f"/v1/sessions/{session}/messages", params=asked)


async def said(app: Client, session: str) -> list[tuple[str, Any]]:
    return [(one["role"], one["content"]) for one in (await messages(app, session))["data"]]


def told(model: ModelServer, request: int) -> list[tuple[str, str]]:
    """What one request told the model after the instructions: the role and the content of each message."""
    return [(one["role"], one.get("content") or "") for one in model.requests[request].messages[1:]]


async def test_the_next_model_hears_inputs_answers_and_tool_results_of_the_jobs_before(
    stack: Stack, operator: Client, app: Client, effects: EffectLog, model: ModelServer
) -> None:
    effects.set_behaviour("look", Behaviour(body={"left": 7}))
    model.script(
        Completion(text="Let me look.", calls=[ToolCall("look", {})]),
        Completion(text="Seven."),
        Completion(calls=[ToolCall("look", {})]),
        Completion(text="Still seven."),
    )
    plugin, session = await thinking_plugin(stack, operator, model), fresh_session()
    await in_turn(app, plugin, session, input={"ask": "how many?"})
    await in_turn(app, plugin, session, input={"ask": "and now?"})
    heard = [
        ("user", '{"ask":"how many?"}'),
        ("assistant", "Let me look."),
        ("tool", '{"left":7}'),
        ("assistant", "Seven."),
        ("user", '{"ask":"and now?"}'),
    ]
    assert told(model, 2) == heard
    assert told(model, 3)[: len(heard)] == heard
    ids = [call["id"] for one in model.requests[3].messages for call in one.get("tool_calls") or ()]
    assert len(ids) == len(set(ids)) == 2
    alone = await app.accepted(plugin, {"ask": "alone"})
    await app.until_ended(alone)
    assert told(model, 4) == [("user", '{"ask":"alone"}')]


async def test_a_session_hears_of_jobs_that_ended_without_an_answer_and_of_calls_left_open(
    stack: Stack, operator: Client, app: Client, effects: EffectLog, model: ModelServer
) -> None:
    plugin, session = await thinking_plugin(stack, operator, model), fresh_session()
    model.script(Failure(400))
    await in_turn(app, plugin, session, input={"n": 1})
    model.script(Completion(text="Looking.", calls=[ToolCall("look", {}), ToolCall("look", {})]))
    effects.set_behaviour("look", Behaviour(delay_seconds=30))
    job = await app.accepted(plugin, {"n": 2}, session=session)
    await app.until_event(job, "tool.started", count=2)
    await terminate(stack, job)
    await app.until_ended(job)
    model.script(Completion(text="Three."))
    await in_turn(app, plugin, session, input={"n": 3})
    heard = told(model, 0)
    assert [role for role, _ in heard] == ["user", "user", "assistant", "tool", "tool", "user"]
    assert [text for role, text in heard if role == "user"] == ['{"n":1}', '{"n":2}', '{"n":3}']
    assert all("may have taken effect, or not" in text for role, text in heard if role == "tool")
    assert await said(app, session) == [
        ("user", {"n": 1}),
        ("user", {"n": 2}),
        ("assistant", "Looking."),
        ("user", {"n": 3}),
        ("assistant", {"message": "Three."}),
    ]


async def test_an_accepted_final_answer_is_a_result_that_the_next_model_sees_settled(
    stack: Stack, operator: Client, app: Client, model: ModelServer
) -> None:
    model.script(
        Completion(text="Not a number."),
        Completion(text="It is seven.", calls=[ToolCall("final_answer", {"n": 7})]),
        Completion(calls=[ToolCall("final_answer", {"n": 8})]),
    )
    plugin = await thinking_plugin(stack, operator, model, manifest={"output_schema": ANSWER})
    session = fresh_session()
    await in_turn(app, plugin, session)
    await in_turn(app, plugin, session)
    returned = [text for role, text in told(model, 2) if role == "tool"]
    assert returned == ["Taken: the job is done."]
    assert await said(app, session) == [
        ("user", {}),
        ("assistant", "Not a number."),
        ("assistant", "It is seven."),
        ("assistant", {"n": 7}),
        ("user", {}),
        ("assistant", {"n": 8}),
    ]


async def test_users_read_neither_arguments_nor_tool_results_nor_what_jobgate_told_the_model(
    stack: Stack, operator: Client, app: Client, effects: EffectLog
) -> None:
    effects.set_behaviour("look", Behaviour(body={"secret": HIDDEN, "echo": SECRETS["TOOL_TOKEN"]}))
    script = [turn(call("look", {"q": HIDDEN}), call("no-such", {"q": HIDDEN}), say="Looking."), final({"ok": True})]
    plugin = await plugin_of(
        stack, operator, script, tool("look"), manifest={"skills": ["skill.md"]}, files={"skill.md": HIDDEN}
    )
    session = fresh_session()
    await in_turn(app, plugin, session, input={"ask": 1})
    assert len(effects.calls("look")) == 1
    raw = await app.http.get(f"/v1/sessions/{session}/messages")
    assert HIDDEN not in raw.text
    assert SECRETS["TOOL_TOKEN"] not in raw.text
    assert "no such tool" not in raw.text
    assert await said(app, session) == [("user", {"ask": 1}), ("assistant", "Looking."), ("assistant", {"ok": True})]


async def test_results_of_scripts_start_empty_with_each_job(
    stack: Stack, operator: Client, app: Client, effects: EffectLog
) -> None:
    script = [
        turn(call("look"), call("again", when="{{ 'look' in results }}")),
        final({"seen": "{{ 'look' in results }}"}),
    ]
    plugin, session = await plugin_of(stack, operator, script, tool("look"), tool("again")), fresh_session()
    for _ in range(2):
        job = await in_turn(app, plugin, session)
        assert (await app.status(job))["result"] == {"seen": True}
    assert (len(effects.calls("look")), len(effects.calls("again"))) == (2, 0)


async def test_cursors_stay_good_while_the_session_goes_on(stack: Stack, operator: Client, app: Client) -> None:
    plugin = await plugin_of(stack, operator, [turn(call("none"), say="One."), final({"n": 1})])
    session = fresh_session()
    first = await in_turn(app, plugin, session, input={"n": 1})
    page = await messages(app, session, limit=2)
    assert [one["seq"] for one in page["data"]] == [1, 2]
    assert page["has_more"]
    rehearsal = await in_turn(app, plugin, session, input={"dry": True}, mode="dry_run")
    second = await in_turn(app, plugin, session, input={"n": 2})
    rest = await messages(app, session, after=page["next_cursor"])
    assert not rest["has_more"]
    shown = page["data"] + rest["data"]
    assert shown == (await messages(app, session))["data"] == (await messages(app, session, after="0"))["data"]
    assert [(one["seq"], one["job_id"]) for one in shown] == [
        (1, first),
        (2, first),
        (3, first),
        (4, second),
        (5, second),
        (6, second),
    ]
    assert [one["at"] for one in shown] == sorted(one["at"] for one in shown)
    assert rehearsal in (await app.get(f"/v1/sessions/{session}"))["jobs"]
    over = await messages(app, session, after=rest["next_cursor"])
    assert (over["data"], over["next_cursor"], over["has_more"]) == ([], rest["next_cursor"], False)


async def test_the_input_of_an_open_job_is_a_message_before_anybody_answers(
    stack: Stack, operator: Client, app: Client
) -> None:
    plugin, session = await plugin_of(stack, operator, [final({"n": 1}, delay_seconds=20)]), fresh_session()
    job = await app.accepted(plugin, {"hello": "\u00e4\u2028"}, session=session)
    [message] = (await messages(app, session))["data"]
    assert (message["role"], message["content"], message["job_id"]) == ("user", {"hello": "\u00e4\u2028"}, job)
    await app.cancel(job)


async def test_every_answer_of_a_model_is_on_the_bill_once(
    stack: Stack, operator: Client, app: Client, model: ModelServer
) -> None:
    plugin = await thinking_plugin(stack, operator, model)
    before = await app.get("/v1/usage")
    model.script(Failure(500), Completion(text="Better.", usage=(100, 20)))
    await app.until_ended(await app.accepted(plugin, {}))
    after = await app.get("/v1/usage")
    assert json.dumps(before) != json.dumps(after)
    [was], [now] = before["data"], after["data"]
    assert (now["input_tokens"] - was["input_tokens"], now["output_tokens"] - was["output_tokens"]) == (100, 20)
