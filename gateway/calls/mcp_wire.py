"""One session with an MCP server (streamable HTTP) through the door, and what became of its one request that counts.

A session serves one listing or one call and is given up after it. The SDK speaks the protocol; here is decided what
really leaves: no redirect is followed, no request is sent twice, no stream is opened for messages that nobody reads,
and the permit is taken when the connection of `tools/call` stands. What the SDK raises says too little, so the fate of
that request is kept apart from it. Nothing of a server's text gets into a reason or a log line.
"""

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import httpx2
from mcp.client.session import ClientSession
from mcp.client.streamable_http import MCP_SESSION_ID, streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp_types import METHOD_NOT_FOUND, UNSUPPORTED_PROTOCOL_VERSION, Implementation
from pydantic import ValidationError

from gateway.calls.egress import BeforeBytes, Door, no_cookies
from gateway.calls.outbound import NotSent, ReplyLost
from gateway.deployments import Connection

REPLY_BYTES = 4 * 1024 * 1024
"""Of one reply: a result's JSON stands in it twice, as text and as structured content."""
MAX_REQUESTS = 40
"""Of one session: what a server asks for is answered by requests, and it may not ask for ever."""
GOODBYE_S = 2.0
CALL = "tools/call"
REDIRECTS = "The tool's server redirects, and that is not followed."
NOT_MCP = "The tool's server answered something that is not MCP."
IN_TIME = "No complete reply came in time."
CLIENT = Implementation(name="jobgate", version="1")
_LOGGERS = ("mcp", "client")
T = TypeVar("T")


@dataclass(slots=True)
class Line:
    """Who is called, with what, until when. `more` are headers of the call alone."""

    connection: Connection
    time_s: float
    headers: Mapping[str, str] = field(repr=False)
    more: Mapping[str, str] = field(repr=False, default_factory=dict[str, str])
    before_bytes: BeforeBytes | None = None


class Fate:
    """What is known of a session. `left`: bytes of the call may have left. `status` and `headers` are the call's, or
    before it those of a reply that was no success."""

    def __init__(self) -> None:
        self.left = False
        self.refused_by: Exception | None = None
        """What the permit raised."""
        self.failure: NotSent | ReplyLost | None = None
        self.status: int | None = None
        self.headers: Mapping[str, str] = {}
        self.session_id: str | None = None

    def error(self, reason: str) -> Exception:
        """What a session ends as that broke off, for `reason` unless more is known."""
        if self.refused_by is not None:
            return self.refused_by
        failure = self.failure or ReplyLost(reason, status=self.status)
        if not self.left:
            return NotSent(failure.reason)
        return failure if isinstance(failure, ReplyLost) else ReplyLost(failure.reason)


class Wire(httpx2.AsyncBaseTransport):
    """The door as the SDK sees it, for one session."""

    def __init__(self, door: Door, line: Line, fate: Fate) -> None:
        private, time_s = line.connection.allow_private, line.time_s
        self._plain = door.transport(allow_private=private, timeout_s=time_s, max_bytes=REPLY_BYTES)
        self._guarded = door.transport(
            allow_private=private, timeout_s=time_s, max_bytes=REPLY_BYTES, before_bytes=self._before_bytes
        )
        self._line = line
        self._fate = fate
        self._requests = 0

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.method == "GET" and "last-event-id" not in request.headers:
            return httpx2.Response(405, request=request)  # the stream for a server's own messages
        counts = _method_of(request) == CALL
        self._requests += 1
        if self._requests > MAX_REQUESTS or (counts and self._fate.left):
            raise self._failed(ReplyLost("The tool's server asks for more than one call needs."), counts)
        request.headers.update({**self._line.headers, **(self._line.more if counts else {})})
        try:
            response = await (self._guarded if counts else self._plain).handle_async_request(request)
        except (NotSent, ReplyLost) as failure:
            raise self._failed(failure, counts) from None
        return self._seen(response, counts)

    def _seen(self, response: httpx2.Response, counts: bool) -> httpx2.Response:
        status = response.status_code
        self._fate.session_id = response.headers.get(MCP_SESSION_ID) or self._fate.session_id
        if counts or status >= 300:
            self._fate.status, self._fate.headers = status, dict(response.headers)
        if 300 <= status < 400:
            raise self._failed(ReplyLost(REDIRECTS, status=status), counts)
        return httpx2.Response(status, headers=response.headers, stream=_Watched(self, response, counts))

    def failed_reading(self, failure: ReplyLost, counts: bool) -> None:
        self._failed(failure, counts)

    def _failed(self, failure: NotSent | ReplyLost, counts: bool) -> NotSent | ReplyLost:
        if counts or (self._fate.failure is None and not self._fate.left):
            self._fate.failure = failure
        return failure

    async def _before_bytes(self) -> None:
        if self._line.before_bytes is not None:
            try:
                await self._line.before_bytes()
            except Exception as refusal:  # raised again, as it is, by whoever began the session
                self._fate.refused_by = refusal
                raise
        self._fate.left = True


class _Watched(httpx2.AsyncByteStream):
    """A reply's body; what breaks it is told to the wire, because the SDK swallows it."""

    def __init__(self, wire: Wire, response: httpx2.Response, counts: bool) -> None:
        self._wire = wire
        self._response = response
        self._counts = counts

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._response.aiter_raw():
                yield chunk
        except ReplyLost as failure:
            self._wire.failed_reading(failure, self._counts)
            raise

    async def aclose(self) -> None:
        await self._response.aclose()


async def converse(door: Door, line: Line, fate: Fate, use: Callable[[ClientSession], Awaitable[T]]) -> T:
    """What `use` brings from a session. Raises MCPError where the server (or the SDK for it) says no, what the permit
    raised, NotSent, or ReplyLost."""
    silence_sdk()
    answers: list[T] = []
    refusal: MCPError | None = None
    broken = NOT_MCP
    try:
        async with asyncio.timeout(line.time_s), _opened(door, line, fate) as session:
            try:
                await _greet(session)
                answers.append(await use(session))
            except MCPError as error:
                refusal = error
            except (ValidationError, RuntimeError, ValueError):  # the SDK's words for what does not fit the protocol
                broken = NOT_MCP
    except TimeoutError:
        broken = IN_TIME
    except Exception:  # noqa: BLE001  # the SDK's groups of errors say less than the fate does
        broken = NOT_MCP
    if answers:
        return answers[0]
    if refusal is not None and fate.refused_by is None and fate.failure is None:
        raise refusal
    raise fate.error(broken)


@asynccontextmanager
async def _opened(door: Door, line: Line, fate: Fate) -> AsyncGenerator[ClientSession]:
    client = httpx2.AsyncClient(
        transport=Wire(door, line, fate),
        headers={"user-agent": "jobgate"},
        trust_env=False,
        follow_redirects=False,
        timeout=line.time_s,
        cookies=no_cookies(),
    )
    url = line.connection.base_url
    async with (
        client,
        streamable_http_client(url, http_client=client, terminate_on_close=False, max_sse_event_size=REPLY_BYTES) as (
            read,
            write,
        ),
        ClientSession(read, write, client_info=CLIENT) as session,
    ):
        yield session


async def _greet(session: ClientSession) -> None:
    """The handshake, or for a server that has none (MCP 2026-07-28) its discovery."""
    try:
        await session.initialize()
    except MCPError as error:
        if error.code not in (METHOD_NOT_FOUND, UNSUPPORTED_PROTOCOL_VERSION):
            raise
        await session.discover()


async def say_goodbye(door: Door, line: Line, session_id: str) -> None:
    """Lets the server forget the session; whether it listens does not matter."""
    brief = replace(line, time_s=GOODBYE_S, before_bytes=None)
    async with httpx2.AsyncClient(
        transport=Wire(door, brief, Fate()), trust_env=False, timeout=GOODBYE_S, cookies=no_cookies()
    ) as client:
        with contextlib.suppress(httpx2.TransportError):
            await client.delete(line.connection.base_url, headers={MCP_SESSION_ID: session_id})


def silence_sdk() -> None:
    """The SDK logs what servers say, and a server may say a secret."""
    for name in _LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)


def _method_of(request: httpx2.Request) -> str | None:
    """The JSON-RPC method of a message that the SDK wrote."""
    if request.method != "POST":
        return None
    message: Any = json.loads(request.content)
    return message.get("method") if isinstance(message, dict) else None  # pyright: ignore
