"""HTTP/1.1 as the API reads it: uvicorn's protocol, with a bound on every request's head and problems as its refusals.

The parser takes heads of any size for any time, so a caller without a credential could hold memory and connections
for ever. Trailers are dropped. What is no HTTP gets a problem document too, and the connection ends.
"""

import asyncio
import json
from typing import Any
from uuid import uuid4

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway.problems import problem_response
from workflows.contract.errors import ProblemCode, Refused

HEAD_BYTES = 64 * 1024
HEAD_S = 10.0
"""How long the head of a request may take, and a new connection may wait for its first one."""


class Wire(HttpToolsProtocol):
    _head: object | None = None
    """Stands for the head that is being read; None between heads."""
    _head_bytes = 0
    _head_clock: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._head_clock = self.loop.call_later(HEAD_S, transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_clock()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        head = self._head
        super().data_received(data)
        if head is None or head is not self._head or self.transport.is_closing():
            return
        self._head_bytes += len(data)
        if self._head_bytes > HEAD_BYTES:
            detail = f"The address and headers of a request may have at most {HEAD_BYTES // 1024} KiB."
            self._refuse(431, Refused(ProblemCode.PAYLOAD_TOO_LARGE, detail))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head, self._head_bytes = object(), 0
        if self._head_clock is None:
            self._head_clock = self.loop.call_later(HEAD_S, self.transport.close)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._head is not None:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._head = None
        self._stop_clock()
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, Refused(ProblemCode.INPUT_INVALID, "The request is not valid HTTP/1.1."))

    def _refuse(self, status: int, refused: Refused) -> None:
        request_id = uuid4().hex
        document: dict[str, Any] = json.loads(bytes(problem_response(refused, request_id).body))
        body = json.dumps(document | {"status": status}, separators=(",", ":")).encode()
        head = (
            f"HTTP/1.1 {status} Refused\r\ncontent-type: application/problem+json\r\nx-request-id: {request_id}\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()

    def _stop_clock(self) -> None:
        if self._head_clock is not None:
            self._head_clock.cancel()
            self._head_clock = None
