"""HTTP/1.1 as the API reads it: uvicorn's protocol, with a bound on every request's head and problems as its refusals.

The parser takes heads of any size for any time, so a caller without a credential could hold memory and connections
for ever. Connections beyond `limit_concurrency` are dropped, so that files stay for other things. Trailers are dropped.
What is no HTTP gets a problem document too, and the connection ends.
"""

import asyncio
import json
from typing import Any, cast
from uuid import uuid4

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway.problems import problem_response
from workflows.contract.errors import ProblemCode, Refused

HEAD_BYTES = 64 * 1024
HEAD_S = 10.0
"""How long the head of a request may take, and a new connection may wait for its first one."""
HANG_UP = "jobgate.hang_up"
"""The key in an ASGI scope under which is what drops the connection, with all that was not sent yet."""
LINGER_S = 2.0
"""What still comes after a refusal is read away for so long: closing at once would take the answer back."""


class Wire(HttpToolsProtocol):
    _head: object | None = None
    """Stands for the head that is being read; None between heads."""
    _arrived = 0
    """Bytes of this head as they came, without the piece that began it: never more than the head has."""
    _parsed = 0
    """Bytes of this head in whole parts."""
    _head_clock: asyncio.TimerHandle | None = None
    _refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        most, self.limit_concurrency = self.limit_concurrency, None  # uvicorn would answer in plain text
        if most is not None and len(self.connections) > most:
            transport.abort()
            return
        self._head_clock = self.loop.call_later(HEAD_S, transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_clock()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        head = self._head
        super().data_received(data)
        if head is None or head is not self._head or self._refused:
            return
        self._arrived += len(data)
        if self._arrived > HEAD_BYTES:
            self.send_400_response("")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        cast(dict[str, Any], self.scope)[HANG_UP] = self.transport.abort
        self._head, self._arrived, self._parsed = object(), 0, 0
        if self._head_clock is None:
            self._head_clock = self.loop.call_later(HEAD_S, self.transport.close)

    def on_url(self, url: bytes) -> None:
        self._take(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._head is not None:
            self._take(len(name) + len(value) + 4)
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._head = None
        self._stop_clock()
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        """What is still to come of a body that nobody waits for must end as soon as a head must."""
        unread = self.cycle.more_body and not self.pipeline
        super().on_response_complete()
        if unread and self._head_clock is None:
            self._head_clock = self.loop.call_later(HEAD_S, self.transport.close)

    def send_400_response(self, msg: str) -> None:
        if max(self._arrived, self._parsed) > HEAD_BYTES:
            detail = f"The address and headers of a request may have at most {HEAD_BYTES // 1024} KiB."
            self._refuse(431, Refused(ProblemCode.PAYLOAD_TOO_LARGE, detail))
        else:
            self._refuse(400, Refused(ProblemCode.INPUT_INVALID, "The request is not valid HTTP/1.1."))

    def _take(self, size: int) -> None:
        """What is raised out of a callback ends the parsing, and comes back as `send_400_response`."""
        self._parsed += size
        if self._parsed > HEAD_BYTES:
            raise ValueError("the head is too large")

    def _refuse(self, status: int, refused: Refused) -> None:
        request_id = uuid4().hex
        document: dict[str, Any] = json.loads(bytes(problem_response(refused, request_id).body))
        body = json.dumps(document | {"status": status}, separators=(",", ":")).encode()
        head = (
            f"HTTP/1.1 {status} Refused\r\ncontent-type: application/problem+json\r\nx-request-id: {request_id}\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self._refused = True
        self.transport.write(head.encode() + body)
        self.transport.write_eof()
        self.loop.call_later(LINGER_S, self.transport.close)

    def _stop_clock(self) -> None:
        if self._head_clock is not None:
            self._head_clock.cancel()
            self._head_clock = None
