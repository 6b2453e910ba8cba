"""A real model behind an OpenAI-compatible server: what it is told, what it may ask for, and what its faults become."""

import json
from collections.abc import AsyncGenerator, Generator
from typing import Any

import pytest
import pytest_asyncio

from tests.rig.doorstep import DEMO, Doorstep
from tests.rig.effect_log import Behaviour, EffectLog
from tests.rig.model_server import Completion, Failure, ModelServer, ToolCall
from tests.rig.plugins import ALLOW_ALL, final, tool
from tests.rig.stack import SECRETS, Stack
from workflows.contract.errors import FailureCode
from workflows.contract.events import EventType
from workflows.contract.ids import JobId, workflow_id
from workflows.contract.job import EndRecord

CANARY = SECRETS["TOOL_TOKEN"]
NUMBERED = {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def doorstep(stack: Stack) -> AsyncGenerator[Doorstep]:
    opened = await Doorstep.open(stack.settings)
    yield opened
    await opened.close()


@pytest.fixture(scope="module")
def model() -> Generator[ModelServer]:
    with ModelServer(api_key=CANARY) as server:
        yield server


async def start(
    doorstep: Doorstep,
    effects: EffectLog,
    model: ModelServer,
    *,
    manifest: dict[str, Any] | None = None,
    price: Any = None,
    kind: str = "openai-chat",
    **options: Any,
) -> JobId:
    connection = {"base_url": model.base_url, "allow_private": True, "credential": {"ref": "env:TOOL_TOKEN"}}
    plugin = await doorstep.publish(
        [final()],
        tools=[tool("stock.get", input_schema=NUMBERED), tool("stock_get"), tool("secret", hidden=True)],
        tools_url=effects.url,
        policy=ALLOW_ALL,
        manifest=manifest,
        deployment={"model": f"{kind}:test-model", "model_connection": connection, "price": price},
    )
    return await doorstep.start(plugin, {"item": "apples"}, **options)


def failure(record: EndRecord) -> FailureCode | None:
    return record.view.failure.code if record.view.failure else None


async def test_a_text_is_the_final_answer_with_real_usage_and_cost(
    doorstep: Doorstep, effects: EffectLog, model: ModelServer
) -> None:
    model.script(Completion(text="All good.", usage=(100, 20)))
    job = await start(doorstep, effects, model, price={"input_per_million_usd": "10", "output_per_million_usd": "100"})
    record = await doorstep.end(job)
    assert await doorstep.result(job) == {"message": "All good."}
    assert (record.view.usage.input_tokens, record.view.usage.output_tokens) == (100, 20)
    assert f"{record.view.usage.cost_usd:.4f}" == "0.0030"
    (asked,) = model.requests
    assert asked.authorized
    assert [message["role"] for message in asked.messages] == ["system", "user"]
    assert asked.messages[0]["content"] == "Do it."
    assert json.loads(asked.messages[1]["content"]) == {"item": "apples"}


async def test_only_the_injected_credential_leaves(doorstep: Doorstep, effects: EffectLog, model: ModelServer) -> None:
    model.script(Completion(text="Hello."))
    await doorstep.end(await start(doorstep, effects, model))
    (asked,) = model.requests
    assert {name for name, _ in asked.headers} <= {
        "host",
        "accept",
        "accept-encoding",
        "content-type",
        "content-length",
        "user-agent",
    }


async def test_tools_are_offered_one_to_one_and_hidden_ones_are_not(
    doorstep: Doorstep, effects: EffectLog, model: ModelServer
) -> None:
    effects.set_behaviour("stock.get", Behaviour(body={"left": 7}))
    model.script(
        Completion(text="Let me look.", calls=[ToolCall("stock_get-2", {"n": 3}), ToolCall("stock_get", {})]),
        Completion(text="Seven."),
    )
    job = await start(doorstep, effects, model)
    assert await doorstep.result(job) == {"message": "Seven."}
    first, second = model.requests
    assert sorted(first.tools) == ["ask_human", "stock_get", "stock_get-2"]
    assert [call.args for call in effects.calls("stock.get")] == [{"n": ["3"]}]
    assert len(effects.calls("stock_get")) == 1
    said, *returned = second.messages[2:]
    assert [call["function"]["name"] for call in said["tool_calls"]] == ["stock_get-2", "stock_get"]
    assert json.loads(returned[0]["content"]) == {"left": 7}
    assert [message["tool_call_id"] for message in returned] == [call["id"] for call in said["tool_calls"]]


async def test_calls_that_can_not_run_are_refused_and_the_model_is_told(
    doorstep: Doorstep, effects: EffectLog, model: ModelServer
) -> None:
    model.script(
        Completion(
            calls=[
                ToolCall("stock_get-2", {"n": "CANARY"}),
                ToolCall("stock_get-2", '{"n": 1'),
                ToolCall("stock_get-2", '{"n": 12345678901234567890}'),
                ToolCall("made up!", {}),
                ToolCall("secret", {}),
            ]
        ),
        Completion(text="I give up."),
    )
    job = await start(doorstep, effects, model)
    record = await doorstep.end(job)
    refused = [event.data for event in record.events if event.type is EventType.TOOL_REFUSED]
    assert [one["tool"] for one in refused] == ["stock.get", "stock.get", "stock.get", "made up!", "secret"]
    assert "CANARY" not in record.model_dump_json()
    assert effects.calls() == []
    told = [message["content"] for message in model.requests[1].messages if message["role"] == "tool"]
    assert len(told) == 5
    assert all(text.startswith("The call was refused and did not run.") for text in told)


async def test_a_missing_usage_is_estimated_and_said(
    doorstep: Doorstep, effects: EffectLog, model: ModelServer
) -> None:
    model.script(Completion(text="x" * 400, usage=None))
    record = await doorstep.end(await start(doorstep, effects, model))
    assert record.view.usage.output_tokens == 100
    assert record.view.usage.input_tokens > 50
    finished = next(event for event in record.events if event.type is EventType.STEP_FINISHED)
    assert finished.data["estimated"] is True


@pytest.mark.parametrize("status", [400, 401, 403, 404])
async def test_a_refusal_of_the_model_is_tried_once(
    doorstep: Doorstep, effects: EffectLog, model: ModelServer, status: int
) -> None:
    model.script(Failure(status, times=9, message=f"no, {CANARY}"))
    record = await doorstep.end(await start(doorstep, effects, model))
    assert failure(record) is FailureCode.MODEL_FAILED
    assert len(model.requests) == 1
    assert CANARY not in record.model_dump_json()
    assert "no, " not in record.model_dump_json()


async def test_a_fault_of_the_model_is_tried_again_by_the_job_alone(
    doorstep: Doorstep, effects: EffectLog, model: ModelServer
) -> None:
    model.script(Failure(500), Completion(text="Better."))
    job = await start(doorstep, effects, model)
    record = await doorstep.end(job)
    assert await doorstep.result(job) == {"message": "Better."}
    assert len(model.requests) == 2
    reasons = [event.data for event in record.events if event.type is EventType.ATTEMPT_REPLACED]
    assert [(one["reason"], one["retry_in_s"]) for one in reasons] == [("unavailable", 1)]


async def test_retry_after_of_a_429_is_kept(doorstep: Doorstep, effects: EffectLog, model: ModelServer) -> None:
    model.script(Failure(429, headers={"Retry-After": "2"}), Completion(text="Now."))
    record = await doorstep.end(await start(doorstep, effects, model))
    (replaced,) = [event.data for event in record.events if event.type is EventType.ATTEMPT_REPLACED]
    assert (replaced["reason"], replaced["retry_in_s"]) == ("rate_limited", 2)
    between = model.requests[1].monotonic_ns - model.requests[0].monotonic_ns
    assert between >= 2e9


async def test_with_an_output_schema_only_final_answer_ends_the_job(
    doorstep: Doorstep, effects: EffectLog, model: ModelServer
) -> None:
    model.script(
        Completion(text="Seven."),
        Completion(calls=[ToolCall("final_answer", {"n": "seven"})]),
        Completion(calls=[ToolCall("final_answer", {"n": 7}), ToolCall("stock_get", {})]),
        Completion(calls=[ToolCall("final_answer", {"n": 7})]),
    )
    job = await start(doorstep, effects, model, manifest={"output_schema": NUMBERED})
    assert await doorstep.result(job) == {"n": 7}
    assert "final_answer" in model.requests[0].tools
    last = [(m["role"], m.get("content")) for m in model.requests[3].messages[2:]]
    assert last[1] == ("user", "The final answer was not accepted. Call final_answer, once and alone, to end the job.")
    assert last[3] == ("tool", "Not accepted: at /n: must be integer")
    assert last[5][1] == "final_answer must be called once and alone. It was not taken; the other calls were."


async def test_an_output_that_is_no_object_is_wrapped_for_the_provider(
    doorstep: Doorstep, effects: EffectLog, model: ModelServer
) -> None:
    model.script(Completion(calls=[ToolCall("final_answer", {"answer": [1, 2]})]))
    job = await start(doorstep, effects, model, manifest={"output_schema": {"type": "array"}})
    assert await doorstep.result(job) == [1, 2]


async def test_an_echoed_key_is_nowhere(
    stack: Stack, doorstep: Doorstep, effects: EffectLog, model: ModelServer
) -> None:
    model.script(
        Completion(text=f"Your key is {CANARY}.", calls=[ToolCall("stock_get", {"key": CANARY})]),
        Completion(text=f"Bearer {CANARY}"),
    )
    job = await start(doorstep, effects, model)
    assert await doorstep.result(job) == {"message": "[secret]"}
    history = await doorstep.client.get_workflow_handle(workflow_id(DEMO, job)).fetch_history()
    assert CANARY not in history.to_json()
    kept = [path for path in stack.data.rglob("*") if path.is_file() and CANARY.encode() in path.read_bytes()]
    assert kept == []


async def test_a_server_that_is_not_there_is_a_typed_failure(
    doorstep: Doorstep, effects: EffectLog, model: ModelServer
) -> None:
    model.script(Failure(404, times=9))
    record = await doorstep.end(await start(doorstep, effects, model, kind="openai"))
    assert failure(record) is FailureCode.MODEL_FAILED
    assert [asked.path for asked in model.requests] == ["/v1/responses"]
