"""The model server speaks well enough for the installed pydantic-ai OpenAI chat model, good answers and bad."""

from collections.abc import AsyncIterator, Iterator

import httpx2
import pytest
from pydantic_ai.direct import model_request
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition

from tests.rig.model_server import Completion, Failure, ModelServer, ToolCall

PARAMETERS = ModelRequestParameters(
    function_tools=[
        ToolDefinition(
            name="invoices__get",
            description="Read one invoice.",
            parameters_json_schema={"type": "object", "properties": {"id": {"type": "string"}}},
        )
    ]
)


@pytest.fixture(scope="module")
def server() -> Iterator[ModelServer]:
    with ModelServer() as running:
        yield running


@pytest.fixture
async def model(server: ModelServer) -> AsyncIterator[Model]:
    async with httpx2.AsyncClient(trust_env=False, timeout=5) as client:
        provider = OpenAIProvider(base_url=server.base_url, api_key=server.api_key, http_client=client)
        yield OpenAIChatModel("tiny", provider=provider)


async def ask(model: Model) -> ModelResponse:
    return await model_request(
        model,
        [ModelRequest.user_text_prompt("Look at inv_17.")],
        model_settings=ModelSettings(max_retries=0),
        model_request_parameters=PARAMETERS,
    )


async def test_a_text_and_its_usage_arrive(server: ModelServer, model: Model) -> None:
    server.script(Completion(text="All is well.", usage=(11, 7)))
    response = await ask(model)
    assert response.parts == [TextPart("All is well.")]
    assert (response.usage.input_tokens, response.usage.output_tokens) == (11, 7)


async def test_tool_calls_arrive_in_order_with_their_arguments(server: ModelServer, model: Model) -> None:
    server.script(
        Completion(calls=[ToolCall("invoices__get", {"id": "inv_17"}), ToolCall("invoices__get", "{not json")])
    )
    calls = [part for part in (await ask(model)).parts if isinstance(part, ToolCallPart)]
    assert calls[0].args_as_dict() == {"id": "inv_17"}
    assert calls[1].args == "{not json"
    assert len({call.tool_call_id for call in calls}) == 2


async def test_answers_come_in_turn_and_the_last_repeats(server: ModelServer, model: Model) -> None:
    server.script(Completion(text="one"), Completion(text="two"))
    texts = [(await ask(model)).parts for _ in range(3)]
    assert texts == [[TextPart("one")], [TextPart("two")], [TextPart("two")]]


async def test_each_request_is_recorded_without_its_key(server: ModelServer, model: Model) -> None:
    server.script(Completion(text="fine"))
    await ask(model)
    (request,) = server.requests
    assert request.authorized
    assert server.api_key not in repr(request)
    assert request.path == "/v1/chat/completions"
    assert request.tools == ["invoices__get"]
    assert request.messages[-1] == {"role": "user", "content": "Look at inv_17."}


@pytest.mark.parametrize("status", [400, 401, 429, 500])
async def test_a_failure_is_one_request_and_then_the_script_goes_on(
    server: ModelServer, model: Model, status: int
) -> None:
    server.script(Failure(status, times=2, headers={"Retry-After": "3"}), Completion(text="well again"))
    for _ in range(2):
        with pytest.raises(ModelHTTPError) as caught:
            await ask(model)
        assert caught.value.status_code == status
    assert len(server.requests) == 2
    assert (await ask(model)).parts == [TextPart("well again")]


async def test_missing_usage_reads_as_none_spent(server: ModelServer, model: Model) -> None:
    server.script(Completion(text="free", usage=None))
    assert (await ask(model)).usage.total_tokens == 0


async def test_a_slow_answer_outlives_a_short_time_out(server: ModelServer) -> None:
    server.script(Completion(text="late", delay_seconds=5))
    async with httpx2.AsyncClient(trust_env=False, timeout=0.1) as client:
        with pytest.raises(httpx2.ReadTimeout):
            await client.post(f"{server.base_url}/chat/completions", json={"model": "tiny", "messages": []})
    assert not server.requests[0].authorized
