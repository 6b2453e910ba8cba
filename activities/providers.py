"""Real models through pydantic-ai's direct request, behind the one door; no SDK reads a key from the environment.

The SDKs get a placeholder for a key: a hook removes whatever they put into the headers and injects the credential last.
Nothing is retried here. Of a provider's failure only the status is told, never its text.
"""

import asyncio
from dataclasses import replace
from decimal import Decimal

import httpx2
from genai_prices import Usage, calc_price
from pydantic import JsonValue
from pydantic_ai.direct import model_request
from pydantic_ai.exceptions import ModelAPIError, ModelHTTPError, UnexpectedModelBehavior, UserError
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.tools import ToolDefinition

from activities.answers import FINAL_ANSWER, Answer, Final
from activities.finals import offered_schema
from activities.planning import ASK_HUMAN_SCHEMA, AskedCall
from gateway.allowlist import CredentialPolicy
from gateway.calls.attempts import now
from gateway.calls.egress import Door
from gateway.calls.http_tool import retry_after
from gateway.credentials import Scrubber, resolve_credential
from gateway.deployments import PRICED_AS, Deployment
from gateway.manifest import Manifest
from gateway.snapshots import ASK_HUMAN
from gateway.strictjson import parse_json
from workflows.contract.errors import Refused, StepCode, StepError
from workflows.contract.ids import Workspace

LONGEST_CALL_S = 300.0
PLACEHOLDER = "the-door-injects-it"
KEPT_HEADERS = frozenset({"content-type", "accept", "anthropic-version", "anthropic-beta"})
BYTES_PER_TOKEN = 4


class Exchange:
    """One request: which headers leave, how large it was, and what must not come back."""

    def __init__(self, header: str, value: str, scrubber: Scrubber) -> None:
        self._header = header
        self._value = value
        self.scrubber = scrubber
        self.request_bytes = 0

    async def inject(self, request: httpx2.Request) -> None:
        for name in [name for name in request.headers if name.lower() not in KEPT_HEADERS]:
            del request.headers[name]
        request.headers[self._header] = self._value
        self.request_bytes = len(await request.aread())


class Providers:
    """One per process. `ask` raises StepError: what is worth another attempt, and what is not."""

    def __init__(self, door: Door, credentials: CredentialPolicy) -> None:
        self._door = door
        self._credentials = credentials

    async def ask(
        self,
        deployment: Deployment,
        messages: list[ModelMessage],
        manifest: Manifest,
        offered: dict[str, str],
        *,
        workspace: Workspace,
        turn: int,
        left_s: float,
    ) -> Answer:
        exchange = self._exchange(deployment, workspace)
        connection = deployment.model_connection
        assert connection is not None
        async with self._door.client(
            allow_private=connection.allow_private, timeout_s=min(LONGEST_CALL_S, left_s)
        ) as client:
            client.event_hooks = {"request": [exchange.inject]}
            model = await asyncio.to_thread(build_model, deployment.model, connection.base_url, client)
            try:
                response = await model_request(
                    model, messages, model_request_parameters=parameters_of(manifest, offered), instrument=False
                )
            except (ModelAPIError, UnexpectedModelBehavior, UserError, httpx2.TransportError) as failure:
                error = step_error(failure)
            else:
                answer = read_answer(response, exchange, offered, deployment, turn)
                # With an output schema only `final_answer` ends the job.
                return answer if manifest.output_schema is None else replace(answer, final=None)
        raise error from None

    def _exchange(self, deployment: Deployment, workspace: Workspace) -> Exchange:
        connection = deployment.model_connection
        if connection is None:
            raise StepError(StepCode.REJECTED, "A real model needs a base_url and a credential.")
        credential = connection.credential
        secret = resolve_credential(
            self._credentials, credential.ref, workspace=workspace, base_url=connection.base_url
        )
        header, prefix = credential.header, credential.prefix
        if deployment.model.startswith("anthropic:") and "header" not in credential.model_fields_set:
            header, prefix = "x-api-key", ""
        value = prefix + secret.reveal()
        return Exchange(header, value, Scrubber([secret], [value]))


def build_model(named: str, base_url: str, client: httpx2.AsyncClient) -> Model:
    """`openai-chat:NAME`, `openai:NAME` (responses) or `anthropic:NAME`. The first of a provider loads its SDK, which
    takes a second or two: not for the event loop, and not for a worker without real models."""
    kind, _, name = named.partition(":")
    if kind in ("openai", "openai-responses", "openai-chat"):
        from openai import AsyncOpenAI
        from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
        from pydantic_ai.providers.openai import OpenAIProvider

        openai = AsyncOpenAI(api_key=PLACEHOLDER, base_url=base_url, http_client=client, max_retries=0)
        provider = OpenAIProvider(openai_client=openai)
        return (OpenAIChatModel if kind == "openai-chat" else OpenAIResponsesModel)(name, provider=provider)
    if kind == "anthropic":
        from anthropic import AsyncAnthropic
        from pydantic_ai.models.anthropic import AnthropicModel
        from pydantic_ai.providers.anthropic import AnthropicProvider

        anthropic = AsyncAnthropic(api_key=PLACEHOLDER, base_url=base_url, http_client=client, max_retries=0)
        return AnthropicModel(name, provider=AnthropicProvider(anthropic_client=anthropic))
    raise StepError(StepCode.REJECTED, "This provider of models is not available in this release.")


def parameters_of(manifest: Manifest, offered: dict[str, str]) -> ModelRequestParameters:
    """The tools that the model may call: the plugin's that are not hidden, and the built-in ones."""
    tools = [
        ToolDefinition(
            name=offered[tool.name], description=tool.description, parameters_json_schema=dict(tool.input_schema)
        )
        for tool in manifest.tools
        if not tool.hidden
    ]
    tools.append(
        ToolDefinition(
            name=offered[ASK_HUMAN],
            description="Ask a person a question and wait for the answer.",
            parameters_json_schema=dict(ASK_HUMAN_SCHEMA),
        )
    )
    if manifest.output_schema is not None:
        tools.append(
            ToolDefinition(
                name=offered[FINAL_ANSWER],
                description="Give the final answer and end the job. Call it alone.",
                parameters_json_schema=offered_schema(manifest.output_schema),
            )
        )
    return ModelRequestParameters(function_tools=tools, allow_text_output=True)


def step_error(failure: Exception) -> StepError:
    """By status alone: 429 and 5xx are worth another attempt, other refusals are not (design.md, Attempts)."""
    match failure:
        case ModelHTTPError(status_code=429):
            wait = retry_after(failure.headers or {}, now())
            return StepError(StepCode.RATE_LIMITED, "The model answered with status 429.", retry_after_s=wait)
        case ModelHTTPError(status_code=status) if status >= 500 or status in (408, 409, 425):
            wait = retry_after(failure.headers or {}, now())
            return StepError(StepCode.UNAVAILABLE, f"The model answered with status {status}.", retry_after_s=wait)
        case ModelHTTPError(status_code=status):
            return StepError(StepCode.REJECTED, f"The model refused the request with status {status}.")
        case UserError():
            return StepError(StepCode.REJECTED, "The request can not be made for this model.")
        case UnexpectedModelBehavior():
            return StepError(StepCode.UNAVAILABLE, "The model's answer can not be read.")
        case _:
            return StepError(StepCode.UNAVAILABLE, "The model did not answer.")


def read_answer(
    response: ModelResponse, exchange: Exchange, offered: dict[str, str], deployment: Deployment, turn: int
) -> Answer:
    scrub = exchange.scrubber.scrub_text
    own = {name: tool for tool, name in offered.items()}
    say = scrub("".join(part.content for part in response.parts if isinstance(part, TextPart)))
    asked = [part for part in response.parts if isinstance(part, ToolCallPart)]
    raw = [scrub(_arguments(part)) for part in asked]
    calls = tuple(
        AskedCall(own.get(part.tool_name, scrub(part.tool_name)), _object(text))
        for part, text in zip(asked, raw, strict=True)
    )
    read, written = response.usage.input_tokens, response.usage.output_tokens
    estimated = read == 0 and written == 0
    if estimated:
        size = len(say.encode()) + sum(len(text.encode()) for text in raw)
        read, written = -(-exchange.request_bytes // BYTES_PER_TOKEN), -(-size // BYTES_PER_TOKEN)
    return Answer(
        turn=turn,
        say=say,
        calls=calls,
        final=None if calls else Final({"message": say}),
        input_tokens=read,
        output_tokens=written,
        cost_usd=cost_of(deployment, response, read, written),
        estimated=estimated,
    )


def cost_of(deployment: Deployment, response: ModelResponse, read: int, written: int) -> Decimal | None:
    """US dollars by the deployment's price, else by genai-prices; None where neither knows one."""
    if (price := deployment.price) is not None:
        return (price.input_per_million_usd * read + price.output_per_million_usd * written) / 1_000_000
    provider, _, name = deployment.model.partition(":")
    used = Usage(
        input_tokens=read,
        output_tokens=written,
        cache_read_tokens=response.usage.cache_read_tokens,
        cache_write_tokens=response.usage.cache_write_tokens,
    )
    try:
        return calc_price(used, name, provider_id=PRICED_AS.get(provider, provider)).total_price
    except (LookupError, ValueError):
        return None


def _arguments(part: ToolCallPart) -> str:
    """As the model wrote them: pydantic-ai would wrap what is no JSON into an object that is, and a tool might run."""
    return part.args or "{}" if isinstance(part.args, str) else part.args_as_json_str()


def _object(text: str) -> dict[str, JsonValue] | None:
    try:
        value = parse_json(text.encode())
    except (Refused, ValueError):
        return None
    return value if isinstance(value, dict) else None
