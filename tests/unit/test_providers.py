"""Each kind of model is asked through the door, with the credential where its provider looks for it, and only there."""

import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest
import pytest_asyncio
from pydantic_ai.messages import ModelRequest, UserPromptPart

from activities.answers import Answer, Final
from activities.planning import AskedCall
from activities.providers import Providers
from gateway.allowlist import CredentialPolicy
from gateway.bundles import parse_bundle
from gateway.calls.egress import Door
from gateway.deployments import Deployment
from gateway.manifest import Manifest
from tests.rig.wire import Arrival, Reply, WireServer
from workflows.contract.errors import StepCode, StepError
from workflows.contract.ids import Workspace

KEY = "canary-model-key"
ANTHROPIC: dict[str, Any] = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude-test",
    "content": [
        {"type": "text", "text": "Looking."},
        {"type": "tool_use", "id": "toolu_1", "name": "stock_get", "input": {"n": 1}},
    ],
    "stop_reason": "tool_use",
    "stop_sequence": None,
    "usage": {"input_tokens": 11, "output_tokens": 7},
}
RESPONSES: dict[str, Any] = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1_700_000_000,
    "status": "completed",
    "model": "gpt-test",
    "output": [
        {
            "type": "message",
            "id": "msg_1",
            "status": "completed",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "Done.", "annotations": []}],
        }
    ],
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
    "usage": {
        "input_tokens": 12,
        "output_tokens": 5,
        "total_tokens": 17,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
    },
}


class Provider:
    """A provider that answers every request alike and keeps what it was sent."""

    def __init__(self) -> None:
        self.arrivals: list[Arrival] = []
        self.reply = Reply()
        self.server = WireServer(self._respond)

    async def _respond(self, arrival: Arrival) -> Reply:
        self.arrivals.append(arrival)
        return self.reply


@pytest_asyncio.fixture(loop_scope="session")
async def provider() -> AsyncGenerator[Provider]:
    opened = Provider()
    await opened.server.start()
    yield opened
    await opened.server.stop()


def manifest() -> Manifest:
    tool = {
        "name": "stock.get",
        "description": "Stock.",
        "effect": "read",
        "input_schema": {"type": "object"},
        "http": {"connection": "tools", "method": "GET", "path": "/"},
    }
    plugin = {"name": "p", "version": "1", "description": "d", "instructions": "i.md", "services": ["tools"]}
    files = {"plugin.yaml": json.dumps({**plugin, "tools": [tool]}), "i.md": "Do it."}
    return parse_bundle(files, lambda _text, _tools: None).manifest


async def ask(provider: Provider, model: str, monkeypatch: pytest.MonkeyPatch, base: str = "") -> Answer:
    monkeypatch.setenv("MODEL_KEY", KEY)
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "OPENAI_ORG_ID"):
        monkeypatch.setenv(name, "canary-of-the-environment")
    url = provider.server.url + base
    deployment = Deployment.model_validate(
        {
            "plugin": "p",
            "model": model,
            "model_connection": {"base_url": url, "allow_private": True, "credential": {"ref": "env:MODEL_KEY"}},
        }
    )
    async with Door() as door:
        return await Providers(door, CredentialPolicy(development=True)).ask(
            deployment,
            [ModelRequest([UserPromptPart("Hello")], instructions="Do it.")],
            manifest(),
            {"stock.get": "stock_get", "ask_human": "ask_human"},
            workspace=Workspace("demo"),
            turn=3,
            left_s=10,
        )


async def test_anthropic_gets_its_key_header_and_answers_with_calls(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider.reply = Reply(200, json.dumps(ANTHROPIC).encode())
    answer = await ask(provider, "anthropic:claude-test", monkeypatch)
    assert answer.calls == (AskedCall("stock.get", {"n": 1}),)
    assert (answer.turn, answer.say, answer.final) == (3, "Looking.", None)
    assert (answer.input_tokens, answer.output_tokens, answer.estimated) == (11, 7, False)
    (sent,) = provider.arrivals
    assert (sent.path, sent.header("x-api-key"), sent.header("authorization")) == ("/v1/messages", KEY, None)
    assert sent.header("anthropic-version") is not None
    assert "canary-of-the-environment" not in repr(sent)


async def test_openai_responses_get_a_bearer_and_a_text_is_final(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider.reply = Reply(200, json.dumps(RESPONSES).encode())
    answer = await ask(provider, "openai:gpt-test", monkeypatch, "/v1")
    assert answer.final == Final({"message": "Done."})
    assert (answer.input_tokens, answer.output_tokens) == (12, 5)
    (sent,) = provider.arrivals
    assert (sent.path, sent.header("authorization")) == ("/v1/responses", f"Bearer {KEY}")
    assert "canary-of-the-environment" not in repr(sent)


@pytest.mark.parametrize("arguments", ['{"n": 1', "n = 1", "[1]", '{"n": NaN}', '{"n": 1, "n": 2}', '{"n": 1} {}'])
async def test_arguments_that_are_no_json_object_are_none_and_never_wrapped_into_one(
    provider: Provider, monkeypatch: pytest.MonkeyPatch, arguments: str
) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "stock_get", "arguments": arguments}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    body = {
        "id": "1",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "gpt-test",
        "choices": [{"index": 0, "finish_reason": "tool_calls", "message": message}],
    }
    provider.reply = Reply(200, json.dumps(body).encode())
    answer = await ask(provider, "openai-chat:gpt-test", monkeypatch, "/v1")
    assert answer.calls == (AskedCall("stock.get", None),)


@pytest.mark.parametrize("model", ["anthropic:claude-test", "openai:gpt-test", "openai-chat:gpt-test"])
@pytest.mark.parametrize(
    ("status", "code"),
    [(429, StepCode.RATE_LIMITED), (529, StepCode.UNAVAILABLE), (401, StepCode.REJECTED), (403, StepCode.REJECTED)],
)
async def test_a_failure_is_its_status_and_is_asked_once(
    provider: Provider, monkeypatch: pytest.MonkeyPatch, model: str, status: int, code: StepCode
) -> None:
    headers = {"Retry-After": "7"}
    provider.reply = Reply(status, json.dumps({"error": {"message": f"no {KEY}"}}).encode(), headers)
    with pytest.raises(StepError) as caught:
        await ask(provider, model, monkeypatch)
    assert caught.value.step_code is code
    assert caught.value.retry_after_s == (None if code is StepCode.REJECTED else 7)
    assert KEY not in str(caught.value)
    assert len(provider.arrivals) == 1


async def test_a_redirect_is_not_followed(provider: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    provider.reply = Reply(307, b"", {"Location": f"{provider.server.url}/elsewhere"})
    with pytest.raises(StepError):
        await ask(provider, "openai-chat:gpt-test", monkeypatch)
    assert [sent.path for sent in provider.arrivals] == ["/chat/completions"]


@pytest.mark.parametrize("body", [b"<html>", b"{}", b'{"choices": []}'])
async def test_an_answer_that_can_not_be_read_is_worth_another_attempt(
    provider: Provider, monkeypatch: pytest.MonkeyPatch, body: bytes
) -> None:
    provider.reply = Reply(200, body)
    with pytest.raises(StepError) as caught:
        await ask(provider, "openai-chat:gpt-test", monkeypatch)
    assert caught.value.step_code is StepCode.UNAVAILABLE


async def test_an_unknown_provider_is_rejected_without_a_request(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StepError) as caught:
        await ask(provider, "mystery:model", monkeypatch)
    assert caught.value.step_code is StepCode.REJECTED
    assert provider.arrivals == []
