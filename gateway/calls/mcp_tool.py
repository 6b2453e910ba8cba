"""Tools of kind `mcp`: a listing that may only raise what a tool's effect is, and one call in a session of its own.

What a server says of a tool (annotations, output schema) is asked for when a call is planned and again before it is
made, and is kept for a few seconds per connection and credential. A raised effect that was not planned is refused with
nothing sent. Text is kept bounded, other content is not kept, and no text of a server gets into a reason.
"""

import time
from collections import OrderedDict
from dataclasses import dataclass

from mcp.client.session import ClientSession
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    PaginatedRequestParams,
    TextContent,
    Tool,
    ToolAnnotations,
)
from pydantic import JsonValue

from gateway.allowlist import CredentialPolicy
from gateway.calls.egress import BeforeBytes, Door
from gateway.calls.http_tool import TEXT_LIMIT, ToolOutcome, read_outcome
from gateway.calls.kinds import STRICTNESS, Exchange, Injection, Prepared, Proposed, Stamp, inject
from gateway.calls.mcp_wire import Fate, Line, converse, say_goodbye
from gateway.calls.outbound import NotSent, ReplyLost, ReplyTooLarge
from gateway.calls.replies import TOO_LARGE
from gateway.calls.values import fitted, outcome_of_value, without_result
from gateway.credentials import Scrubber
from workflows.contract.errors import StepCode, StepError
from workflows.contract.ids import Workspace
from workflows.contract.job import EffectClass

FRESH_S = 5.0
KEPT = 256
LISTING_S = 10.0
MAX_PAGES = 50
NOT_OFFERED = "The tool's server does not offer this tool."
RAISED = "The tool's server says now that this call changes more than was planned; nothing was sent."
REPORTED = "The tool reported an error."
REFUSED = "The tool's server refused the call."
NOT_TEXT = "The tool answered with something other than text or JSON, which is not kept."
BROKEN = "The tool's server answered with an error of the protocol."
ENDED = "The tool's server has ended the session."
_DEFINITE = frozenset({METHOD_NOT_FOUND, INVALID_PARAMS})
"""What a server says before it does anything, as a 4xx of HTTP."""


@dataclass(frozen=True, slots=True)
class Offered:
    """What the server says of one tool."""

    hints: ToolAnnotations | None
    output_schema: JsonValue


def raised(declared: EffectClass, hints: ToolAnnotations | None) -> EffectClass:
    """The declared class or a stricter one. Only what a server says explicitly counts, and never downwards."""
    if hints is None or declared == "write":
        return declared
    changes = hints.read_only_hint is False or hints.destructive_hint is True
    if declared == "read" and changes:
        return "idempotent_write" if hints.idempotent_hint is True else "write"
    if declared == "idempotent_write" and hints.idempotent_hint is False and changes:
        return "write"
    return declared


class McpCalls:
    """One per process."""

    def __init__(self, door: Door, credentials: CredentialPolicy, *, fresh_s: float = FRESH_S) -> None:
        self._door = door
        self._credentials = credentials
        self._fresh_s = fresh_s
        self._offers: OrderedDict[tuple[Workspace, str, str], tuple[Offered, float]] = OrderedDict()

    async def judge(self, proposed: Proposed) -> EffectClass:
        offered = await self._offered(proposed)
        return raised(proposed.tool.effect, offered.hints)

    async def ready(self, prepared: Prepared) -> Exchange:
        offered = await self._offered(prepared)
        if STRICTNESS[raised(prepared.tool.effect, offered.hints)] > STRICTNESS[prepared.effect]:
            raise StepError(StepCode.REJECTED, RAISED)

        async def exchange(stamp: Stamp, before_bytes: BeforeBytes | None) -> ToolOutcome:
            return await self._call(prepared, offered, stamp, before_bytes)

        return exchange

    # ---- asking what a server offers

    async def _offered(self, proposed: Proposed) -> Offered:
        """Raises StepError: `rejected` where the tool is not offered or the server refuses us."""
        mcp, connection = proposed.tool.mcp, proposed.connection
        assert mcp is not None
        assert connection is not None
        workspace = proposed.receipt.workspace
        key = (workspace, connection.model_dump_json(), mcp.tool)
        kept = self._offers.get(key)
        if kept is not None and time.monotonic() - kept[1] < self._fresh_s:
            return kept[0]
        injection = inject(self._credentials, connection, workspace)
        line = Line(connection, min(proposed.time_s, LISTING_S), {**Stamp().headers(proposed), **injection.headers})
        tool = await self._listed(line, mcp.tool)
        if tool is None:
            raise StepError(StepCode.REJECTED, NOT_OFFERED)
        offered = Offered(tool.annotations, _self_standing(tool.output_schema))
        self._offers[key] = (offered, time.monotonic())
        self._offers.move_to_end(key)
        while len(self._offers) > KEPT:
            self._offers.popitem(last=False)
        return offered

    async def _listed(self, line: Line, name: str) -> Tool | None:
        async def find(session: ClientSession) -> Tool | None:
            cursor: str | None = None
            for _ in range(MAX_PAGES):
                page = await session.list_tools(params=PaginatedRequestParams(cursor=cursor))
                found = next((tool for tool in page.tools if tool.name == name), None)
                cursor = page.next_cursor
                if found is not None or cursor is None:
                    return found
            return None

        fate = Fate()
        try:
            return await converse(self._door, line, fate, find)
        except NotSent as failure:
            reason, code = failure.reason, StepCode.CONNECT_REFUSED
        except MCPError:
            reason, code = BROKEN, StepCode.UNAVAILABLE
            if fate.status is not None and _is_refusal(fate.status):
                reason, code = f"The tool's server answered with status {fate.status}.", StepCode.REJECTED
        finally:
            self._leave(line, fate)
        raise StepError(code, reason)

    # ---- calling

    async def _call(
        self, prepared: Prepared, offered: Offered, stamp: Stamp, before_bytes: BeforeBytes | None
    ) -> ToolOutcome:
        mcp, connection, effect = prepared.tool.mcp, prepared.connection, prepared.effect
        assert mcp is not None
        assert connection is not None
        injection = inject(self._credentials, connection, prepared.receipt.workspace)
        marks = stamp.headers(prepared)
        plain = Stamp().headers(prepared)
        line = Line(connection, prepared.time_s, {**plain, **injection.headers}, marks, before_bytes)
        params = {"name": mcp.tool, "arguments": dict(prepared.args), "_meta": {**marks}}
        request = CallToolRequest(params=CallToolRequestParams.model_validate(params))
        fate = Fate()

        async def call(session: ClientSession) -> CallToolResult:
            if session.discover_result is not None:
                await session.list_tools()  # such a session mirrors arguments into headers, as the listing says
            return await session.send_request(request, CallToolResult)

        try:
            result = await converse(self._door, line, fate, call)
        except MCPError as error:
            return _refused(effect, fate, error, injection.scrubber)
        except ReplyTooLarge:
            if effect == "write":
                raise
            return without_result(effect, TOO_LARGE)
        finally:
            self._leave(line, fate)
        return outcome_of_result(effect, result, offered.output_schema, injection)

    def _leave(self, line: Line, fate: Fate) -> None:
        """Aside: an outcome waits for nothing that comes after it."""
        if fate.session_id is not None:
            self._door.aside(say_goodbye(self._door, line, fate.session_id))


def outcome_of_result(
    effect: EffectClass, result: CallToolResult, output_schema: JsonValue, injection: Injection
) -> ToolOutcome:
    """Structured content where there is some, else the text; scrubbed before it is cut."""
    texts = [block.text for block in result.content if isinstance(block, TextContent)]
    if len(texts) < len(result.content):
        return without_result(effect, NOT_TEXT, failed=result.is_error)
    structured = result.structured_content
    text = injection.scrubber.scrub_text("\n".join(texts))
    cut = text if len(text) <= TEXT_LIMIT else text[: TEXT_LIMIT - 1] + "…"
    if result.is_error:
        said = {"error": cut} if structured is None else structured
        return outcome_of_value(effect, said, injection.scrubber, failed=True, message=REPORTED)
    value = {"text": cut} if structured is None else structured
    outcome = outcome_of_value(effect, value, injection.scrubber)
    if output_schema is None:
        return outcome
    if structured is None:
        return fitted(effect, outcome, False, "the schema that the tool's server declares")
    return fitted(effect, outcome, output_schema, "the schema that the tool's server declares")


def _refused(effect: EffectClass, fate: Fate, error: MCPError, scrubber: Scrubber) -> ToolOutcome:
    """An answer that is no result. Raises StepError where another attempt is worth it, NotSent, ReplyLost."""
    status = fate.status
    if not fate.left:
        if status is not None and _is_refusal(status):
            raise StepError(StepCode.REJECTED, f"The tool's server answered with status {status}.") from None
        raise NotSent(BROKEN) from None
    said: JsonValue = {"error": scrubber.scrub_text(error.message)[:TEXT_LIMIT]}
    if status is not None and status >= 400:
        if status == 404 and fate.session_id is not None and effect != "write":
            raise StepError(StepCode.UNAVAILABLE, ENDED) from None
        outcome = read_outcome(effect, status, fate.headers, b"")
        told = outcome_of_value(effect, said, scrubber, failed=True, message=outcome.message)
        return told if outcome.state in ("failed", "error") else outcome
    if error.code in _DEFINITE:
        return outcome_of_value(effect, said, scrubber, failed=True, message=REFUSED)
    raise ReplyLost(BROKEN, status=status) from None


def _is_refusal(status: int) -> bool:
    """A 4xx that another attempt would get again."""
    return 400 <= status < 500 and status not in (408, 425, 429)


def _self_standing(schema: dict[str, JsonValue] | None) -> JsonValue:
    """Servers name older dialects by habit; what they use of them means the same in 2020-12."""
    return None if schema is None else {name: value for name, value in schema.items() if name != "$schema"}
