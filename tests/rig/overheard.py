"""Every answer of an API that a test receives is heard here and judged by `leak_rules.py`; a leak fails the test.

`Overhearing` stands between a client and its connection and changes nothing. `EAR` is the one of this run: stacks tell
it their live values, `tests/conftest.py` asks it after every test what was heard, and a stack that closes asks whether
any id heard from its APIs was one of the engine's.
"""

import json
import socket
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterable
from functools import cached_property
from pathlib import Path
from typing import cast

import httpx2

from tests.rig.answers import Answer
from tests.rig.leak_rules import Rules
from tests.rig.leak_words import Live, ids_in

_DOCUMENT = Path(__file__).parents[2] / "docs" / "openapi.json"
_KEPT = 500_000
"""Ids per API process; more than a run of the tests could show."""


class Leak(AssertionError):
    """Answers of the API held what they should not."""


class Ear:
    def __init__(self) -> None:
        self.live = Live(places={socket.gethostname(): "the host's name"})
        self._broken = Counter[str]()
        self._ids: dict[str, dict[bytes, str]] = defaultdict(dict)

    @cached_property
    def rules(self) -> Rules:
        return Rules(json.loads(_DOCUMENT.read_text(encoding="utf-8")))

    def hear(self, place: str, answer: Answer) -> None:
        """`place` is the address and port of the API process."""
        self._broken.update(self.rules.broken(answer, self.live))
        for value in ids_in(answer):
            self._ids[place].setdefault(value, f"{answer.method} {answer.status} {answer.media_type}")
        assert len(self._ids[place]) <= _KEPT, "too many ids to compare with the engine's"

    def taken(self) -> Counter[str]:
        """What was wrong since the last time, and how often."""
        found, self._broken = self._broken, Counter[str]()
        return found

    def fail(self) -> None:
        if found := self.taken():
            raise Leak("\n".join(f"{line} (x{count})" for line, count in sorted(found.items())))

    def settle(self, places: Iterable[str], run_ids: Iterable[str]) -> None:
        """Forgets what these API processes said; fails where an app was told one of the engine's run ids."""
        heard: dict[bytes, str] = {}
        for place in places:
            heard |= self._ids.pop(place, {})
        found = {f"{heard[run.encode()]}: run id" for run in run_ids if run.encode() in heard}
        if found:
            raise Leak("\n".join(sorted(found)))


EAR = Ear()


class Overhearing(httpx2.AsyncBaseTransport):
    """Passes everything on to `inner` and lets `ear` hear each answer that came whole, and each stream when left."""

    def __init__(self, inner: httpx2.AsyncBaseTransport | None = None, ear: Ear = EAR) -> None:
        # No test speaks TLS, and reading the certificates of the world for each client takes 0.1 s of computing.
        self._inner = inner or httpx2.AsyncHTTPTransport(trust_env=False, verify=False)
        self._ear = ear

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await self._inner.handle_async_request(request)
        response.stream = _Heard(cast(httpx2.AsyncByteStream, response.stream), request, response, self._ear)
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()


class _Heard(httpx2.AsyncByteStream):
    def __init__(
        self, inner: httpx2.AsyncByteStream, request: httpx2.Request, response: httpx2.Response, ear: Ear
    ) -> None:
        self._inner = inner
        self._ear = ear
        self._place = request.url.netloc.decode()
        path = request.url.raw_path.partition(b"?")[0].decode("ascii")
        self._head = (request.method, path, response.status_code, tuple(response.headers.multi_items()))
        self._body = bytearray()
        self._streams = response.headers.get("content-type", "").startswith("text/event-stream")
        self._judged = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._inner:
            self._body += chunk
            yield chunk
        self._judge()

    async def aclose(self) -> None:
        if self._streams:
            self._judge()
        await self._inner.aclose()

    def _judge(self) -> None:
        if not self._judged:
            self._judged = True
            self._ear.hear(self._place, Answer(*self._head, bytes(self._body)))
