"""What surrounds every request: its id, trace, log context, count, size, clock and place, and the answer to a crash.

A pure ASGI middleware, because the ready-made base class costs more than a whole status read. Routes move the clock
(`facade.clock`) and never see the rest.
"""

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, cast
from uuid import uuid4

from opentelemetry.trace import Span, SpanKind, get_current_span
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from facade.clock import ARRIVED, CLOCK
from facade.stream import ReaderStalled
from gateway.admission import unknown
from gateway.artifacts import ARTIFACT_BYTES
from gateway.places import PLACE
from gateway.problems import REQUEST_ID, clock_ran_out, internal, problem_response
from gateway.settings import Settings
from gateway.telemetry import Telemetry, bind, log, remote_parent, traceparent
from gateway.wire import HANG_UP
from workflows.contract.errors import ProblemCode, Refused

BODY_LIMIT = 256 * 1024
BUNDLE_LIMIT = 2 * 1024 * 1024
"""POST /v1/plugins: 1 MiB of files, which JSON may write with escapes; what the files hold is counted there."""
LIMITS = {"/v1/plugins": BUNDLE_LIMIT, "/v1/artifacts": ARTIFACT_BYTES}
DISCARD_LIMIT, DISCARD_S = 64 * 1024 * 1024, 2.0
"""How much of a refused body is read away, so that its sender gets to read the refusal."""
LEFT = 499
"""Counted where the client was gone before there was an answer."""
CLOCK_SLACK_S = 0.5
"""POST routes have clocks of their own that say what happened; this one only stands behind them."""

_REQUEST_ID = re.compile(r"[A-Za-z0-9-]{1,64}")
_SUBMITS = re.compile(r"/v1/jobs(/[^/]+/retry)?")
_UNMATCHED = "unmatched"


class Envelope:
    def __init__(self, app: ASGIApp, settings: Settings, telemetry: Telemetry) -> None:
        self._app = app
        self._settings = settings
        self._telemetry = telemetry

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        scope[REQUEST_ID] = request_id = given if _REQUEST_ID.fullmatch(given) else uuid4().hex
        parent = remote_parent(headers.get("traceparent"))
        with (
            bind(request_id=request_id),
            self._telemetry.span(f"HTTP {scope['method']}", parent=parent, kind=SpanKind.SERVER) as span,
        ):
            known = get_current_span(parent).get_span_context().is_valid
            trace = headers["traceparent"] if known else traceparent() or ""
            answer = _Answer(send, request_id, trace, self._settings.stream_send_timeout_s)
            scope[ARRIVED] = began = asyncio.get_running_loop().time()
            try:
                await self._answer(scope, headers, receive, answer)
            finally:
                if (place := scope.pop(PLACE, None)) is not None:
                    place.leave()
                self._count(scope, span, answer, asyncio.get_running_loop().time() - began)
            if answer.begun and not answer.complete:
                await _hang_up(scope, receive)

    async def _answer(self, scope: Scope, headers: Headers, receive: Receive, answer: "_Answer") -> None:
        """The app's answer, or the refusal that comes instead of it."""
        limit = LIMITS.get(scope["path"], BODY_LIMIT)
        body = _Body(receive, limit)
        try:
            async with asyncio.timeout(self._clock_s(scope, headers)) as clock:
                scope[CLOCK] = answer.clock = clock
                if body.announced_too_large(headers):
                    raise _too_large(limit)
                await self._app(scope, body.receive, answer.send)
            return
        except ReaderStalled:
            log.info("dropped a reader that takes no bytes")
            return
        except ClientDisconnect:
            answer.status = LEFT
            return
        except _TooLarge:
            refused = _too_large(limit)
        except Refused as early:
            refused = early
        except TimeoutError:
            refused = clock_ran_out()
        except asyncio.CancelledError:
            if answer.begun:
                raise
            refused = _going_down(scope)
        except Exception as crash:  # noqa: BLE001 - a crash in a route is an answer, too
            log.error("a request crashed", exc_info=crash)
            refused = internal()
        if answer.begun:
            return
        answer.clock = None  # it has ended with the app
        if refused.code == ProblemCode.PAYLOAD_TOO_LARGE:
            await body.discard()
        await problem_response(refused, scope[REQUEST_ID])(scope, receive, answer.send)

    def _clock_s(self, scope: Scope, headers: Headers) -> float:
        if "jobgate-http-deadline" in headers:
            return self._settings.http_deadline_max_s + CLOCK_SLACK_S
        return self._settings.http_deadline_s + (CLOCK_SLACK_S if scope["method"] == "POST" else 0.0)

    def _count(self, scope: Scope, span: Span, answer: "_Answer", seconds: float) -> None:
        route = cast(str, getattr(scope.get("route"), "path_format", _UNMATCHED))
        method = scope["method"] if scope["method"] in _METHODS else "other"
        span.update_name(f"{method} {route}")
        span.set_attribute("http.route", route)
        span.set_attribute("http.request.method", method)
        span.set_attribute("http.response.status_code", answer.status)
        labels = {"method": method, "route": route, "status": str(answer.status)}
        self._telemetry.metrics.http_requests.add(1, labels)
        if not answer.streamed:
            self._telemetry.metrics.http_seconds.record(seconds, {"route": route})


_METHODS = frozenset({"GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS"})


class _TooLarge(Exception):
    """Raised out of `receive`, so that whoever reads the body stops."""


class _Body:
    """Counts what is read. Units: bytes."""

    def __init__(self, receive: Receive, limit: int) -> None:
        self._receive = receive
        self._limit = limit
        self._read = 0
        self._more = True

    def announced_too_large(self, headers: Headers) -> bool:
        """The header is digits and sane here: the server has refused all else."""
        announced = headers.get("content-length", "0")
        return announced.isascii() and announced.isdigit() and int(announced) > self._limit

    async def receive(self) -> Message:
        message = await self._receive()
        self._take(message)
        if self._read > self._limit:
            raise _TooLarge
        return message

    async def discard(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DISCARD_S):
                while self._more and self._read < DISCARD_LIMIT:
                    self._take(await self._receive())

    def _take(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.request":
            self._read += len(message.get("body", b""))
            self._more = message.get("more_body", False)
        else:
            self._more = False


class _Answer:
    """Adds the headers of every answer, stops the clock once it has begun, and waits for no reader for ever."""

    def __init__(
        self, send: Callable[[Message], Awaitable[None]], request_id: str, trace: str, send_timeout_s: float
    ) -> None:
        self._send = send
        self._send_timeout_s = send_timeout_s
        self._headers = {"X-Request-Id": request_id, "traceparent": trace}
        self.clock: asyncio.Timeout | None = None
        self.begun = self.complete = False
        self.streamed = False
        self.status = 500

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.begun, self.status = True, message["status"]
            headers = MutableHeaders(scope=message)
            headers.update(self._headers)
            self.streamed = headers.get("content-type", "").startswith("text/event-stream")
            if self.clock is not None and not self.clock.expired():
                self.clock.reschedule(None)
        elif message["type"] == "http.response.body":
            self.complete = not message.get("more_body", False)
        if self.streamed:  # which keeps a time of its own
            await self._send(message)
            return
        try:
            async with asyncio.timeout(self._send_timeout_s):
                await self._send(message)
        except TimeoutError:
            raise ReaderStalled from None


async def _hang_up(scope: Scope, receive: Receive) -> None:
    """What was not sent to its end, because its reader took no more of it, is not waited for."""
    if (hang_up := scope.get(HANG_UP)) is None:
        return
    hang_up()
    while (await receive())["type"] != "http.disconnect":
        pass


def _going_down(scope: Scope) -> Refused:
    """Only the server cancels a request: it is being stopped, and its grace is over."""
    if scope["method"] == "POST" and _SUBMITS.fullmatch(scope["path"]):
        return unknown()
    return Refused(ProblemCode.HTTP_DEADLINE_EXCEEDED, "This process is being stopped. Ask again.")


def _too_large(limit: int) -> Refused:
    return Refused(ProblemCode.PAYLOAD_TOO_LARGE, f"A body may have at most {limit // 1024} KiB here.")
