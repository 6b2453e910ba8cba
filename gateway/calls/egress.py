"""The one door for outbound HTTP: what leaves, to which address, how much may come back, and what is known after.

Every call ends as an `OutboundReply`, as `NotSent` (nothing left, for certain) or as `ReplyLost` (bytes may have left).
The door follows no redirect, reads no environment, keeps no cookie, decodes no compression and retries nothing. It
speaks HTTP/1.1 only. Methods other than GET and HEAD never reuse a connection: a pooled one that the other side just
closed would turn a plain "refused" into a lost reply. Reasons are fixed sentences, never the other side's text.
"""

import asyncio
import math
import ssl
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import aclosing
from http.cookiejar import CookieJar, DefaultCookiePolicy
from types import TracebackType
from typing import Any, Self, cast

import httpcore2
import httpx2

from gateway.calls.addresses import AddressRefused, CheckedBackend, HostUnknown, Resolve, resolve_by_system
from gateway.calls.outbound import OURS, NotSent, OutboundCall, OutboundReply, ReplyLost, ReplyTooLarge, build, joined

BeforeBytes = Callable[[], Awaitable[None]]
MODEL_REPLY_BYTES = 16 * 1024 * 1024
KEEP_ALIVE_S = 10.0
_REUSING = frozenset({"GET", "HEAD"})


class Door:
    """Async context manager, for one event loop. `resolve` and `tls` replace the system's own."""

    def __init__(self, *, resolve: Resolve = resolve_by_system, tls: ssl.SSLContext | None = None) -> None:
        self._resolve = resolve
        self._tls = tls or httpx2.create_ssl_context(trust_env=False)
        self._pools: dict[tuple[bool, bool], httpcore2.AsyncConnectionPool] = {}
        self._aside: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._aside:
            task.cancel()
        await asyncio.gather(*self._aside, return_exceptions=True)
        for pool in self._pools.values():
            await pool.aclose()
        self._pools.clear()

    def aside(self, work: Coroutine[Any, Any, None]) -> None:
        """What nobody waits for, such as a farewell; it ends with the door at the latest."""
        task = asyncio.create_task(work)
        self._aside.add(task)
        task.add_done_callback(self._aside.discard)

    async def send(self, call: OutboundCall, *, before_bytes: BeforeBytes | None = None) -> OutboundReply:
        """`before_bytes` is awaited when the connection stands, before the first byte leaves; what it raises comes out
        as it is, and then nothing was sent. Raises NotSent, ReplyLost and ReplyTooLarge besides."""
        loop = asyncio.get_running_loop()
        exchange = _Exchange(loop.time() + call.timeout_s, call.max_bytes, before_bytes)
        request = build(call, exchange.trace)
        pool = self._pool(call.allow_private, reuse=call.method in _REUSING)
        response = await exchange.open(pool, request)
        chunks = [chunk async for chunk in exchange.body(response)]
        return OutboundReply(response.status, joined(response.headers), b"".join(chunks))

    def client(self, *, allow_private: bool, timeout_s: float) -> httpx2.AsyncClient:
        """An HTTP client for a model provider's SDK, behind the same door; the caller closes it. `timeout_s` is the
        whole time of one request, its streamed reply included. Failures are the door's own (TransportErrors)."""
        return httpx2.AsyncClient(
            transport=_Transport(self._pool(allow_private, reuse=True), timeout_s, MODEL_REPLY_BYTES),
            trust_env=False,
            follow_redirects=False,
            timeout=timeout_s,
            cookies=no_cookies(),
        )

    def transport(
        self, *, allow_private: bool, timeout_s: float, max_bytes: int, before_bytes: BeforeBytes | None = None
    ) -> httpx2.AsyncBaseTransport:
        """The door for a protocol of several requests, each within the same `timeout_s` from now. With `before_bytes`,
        which is awaited as `send` does, no connection is used twice."""
        until = asyncio.get_running_loop().time() + timeout_s
        pool = self._pool(allow_private, reuse=before_bytes is None)
        return _Transport(pool, timeout_s, max_bytes, until=until, before_bytes=before_bytes)

    def _pool(self, allow_private: bool, *, reuse: bool) -> httpcore2.AsyncConnectionPool:
        """Pools never mix what one call may reach with what another may not."""
        key = (allow_private, reuse)
        if key not in self._pools:
            self._pools[key] = httpcore2.AsyncConnectionPool(
                ssl_context=self._tls,
                max_connections=None,
                max_keepalive_connections=20 if reuse else 0,
                keepalive_expiry=KEEP_ALIVE_S,
                retries=0,
                network_backend=CheckedBackend(self._resolve, allow_private=allow_private),
            )
        return self._pools[key]


class _Vetoed(Exception):
    """Carries the fact, not the error, through the HTTP library: some of its own errors it would swallow."""


class _Exchange:
    """One request and its reply: the clock, the size, and whether a byte may have left."""

    def __init__(self, deadline: float, max_bytes: int, before_bytes: BeforeBytes | None = None) -> None:
        self._deadline = deadline
        self._max_bytes = max_bytes
        self._before_bytes = before_bytes
        self._veto: Exception | None = None
        self._left = False

    async def trace(self, name: str, info: dict[str, Any]) -> None:
        if name != "http11.send_request_headers.started":
            return
        if self._before_bytes is not None:
            try:
                await self._before_bytes()
            except Exception as veto:  # noqa: BLE001  # raised again, as it is, by `open`
                self._veto = veto
                raise _Vetoed from None
        self._left = True

    async def open(self, pool: httpcore2.AsyncConnectionPool, request: httpcore2.Request) -> httpcore2.Response:
        try:
            async with asyncio.timeout_at(self._deadline):
                response = await pool.handle_async_request(request)
        except Exception as failure:  # noqa: BLE001  # every fault has one of two meanings here
            error = self._veto or (_lost(failure, None) if self._left else _not_sent(failure))
        else:
            error = self._unwelcome(response)
            if error is None:
                return response
            await response.aclose()
        raise error from None

    async def body(self, response: httpcore2.Response) -> AsyncIterator[bytes]:
        stream = cast(AsyncGenerator[bytes], aiter(cast(AsyncIterable[bytes], response.stream)))
        size = 0
        try:
            async with aclosing(stream):
                while (chunk := await self._next(stream, response.status)) is not None:
                    size += len(chunk)
                    if size > self._max_bytes:
                        raise _too_large(response.status)
                    yield chunk
        finally:
            await response.aclose()

    async def _next(self, stream: AsyncIterator[bytes], status: int) -> bytes | None:
        try:
            async with asyncio.timeout_at(self._deadline):
                return await anext(stream, None)
        except Exception as failure:  # noqa: BLE001  # whatever it was, the reply is lost
            error = _lost(failure, status)
        raise error

    def _unwelcome(self, response: httpcore2.Response) -> ReplyLost | None:
        headers = joined(response.headers)
        if headers.get("content-encoding", "identity").strip().lower() not in ("identity", ""):
            return ReplyLost("The reply is compressed although that was not asked for.", status=response.status)
        length = headers.get("content-length", "")
        if length.isascii() and length.isdigit() and int(length[:20]) > self._max_bytes:
            return _too_large(response.status)
        return None


class _Transport(httpx2.AsyncBaseTransport):
    """The door as the SDKs see it."""

    def __init__(
        self,
        pool: httpcore2.AsyncConnectionPool,
        timeout_s: float,
        max_bytes: int,
        *,
        until: float = math.inf,
        before_bytes: BeforeBytes | None = None,
    ) -> None:
        self._pool = pool
        self._timeout_s = timeout_s
        self._max_bytes = max_bytes
        self._until = until
        self._before_bytes = before_bytes

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        now = asyncio.get_running_loop().time()
        until = min(now + self._timeout_s, self._until)
        exchange = _Exchange(until, self._max_bytes, self._before_bytes)
        call = OutboundCall(
            method=request.method,
            url=str(request.url),
            headers={name: value for name, value in request.headers.items() if name not in OURS},
            body=await request.aread(),
            allow_private=False,  # the pool decides
            timeout_s=max(until - now, 0.0),
            max_bytes=self._max_bytes,
        )
        outgoing = build(call, exchange.trace)
        response = await exchange.open(self._pool, outgoing)
        return httpx2.Response(response.status, headers=response.headers, stream=_Body(exchange, response))


class _Body(httpx2.AsyncByteStream):
    def __init__(self, exchange: _Exchange, response: httpcore2.Response) -> None:
        self._exchange = exchange
        self._response = response

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._exchange.body(self._response):
            yield chunk

    async def aclose(self) -> None:
        await self._response.aclose()


def no_cookies() -> CookieJar:
    """A jar that keeps nothing."""
    return CookieJar(DefaultCookiePolicy(allowed_domains=[]))


def _too_large(status: int) -> ReplyTooLarge:
    return ReplyTooLarge("The reply is larger than allowed.", status=status)


def _not_sent(failure: Exception) -> NotSent:
    match failure:
        case AddressRefused() | HostUnknown():
            return NotSent(str(failure))
        case TimeoutError() | httpcore2.TimeoutException():
            return NotSent("No connection was made in time.")
        case httpcore2.ConnectError(args=[ssl.SSLError()]):  # the pool drops its cause
            return NotSent("The other side's certificate or TLS handshake was refused.")
        case _:
            return NotSent("No connection could be made.")


def _lost(failure: Exception, status: int | None) -> ReplyLost:
    match failure:
        case TimeoutError() | httpcore2.TimeoutException():
            return ReplyLost("No complete reply came in time.", status=status)
        case httpcore2.RemoteProtocolError():
            return ReplyLost("The reply was cut off or is not HTTP.", status=status)
        case _:
            return ReplyLost("The connection broke before the reply was complete.", status=status)
