"""The HTTP client of the tests: one principal's token, the verbs of api.md, and waiting for what a job does.

Verbs that a test judges by status or headers return the response; reads that must work return their JSON.
It knows the outside contract only. Every answer it gets is also judged for leaks (`overheard.py`).
"""

import asyncio
import itertools
import json
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Self

import httpx2

from tests.rig.overheard import Overhearing
from tests.rig.waiting import wait_until

Json = dict[str, Any]
TERMINAL = frozenset({"succeeded", "failed", "canceled"})
FULL_S = 60.0


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """One frame of a job's event stream; `id` is the cursor."""

    id: str
    type: str
    event: Json


class Client:
    """Use as an async context manager. `url` and `token` may be those of any API process and any principal."""

    def __init__(self, url: str, token: str | None, *, timeout: float = 70.0) -> None:
        headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
        self.http = httpx2.AsyncClient(base_url=url, headers=headers, timeout=timeout, transport=Overhearing())
        self.url = url
        self.token = token

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.http.aclose()

    async def get(self, path: str, *, expect: int = 200, **options: Any) -> Json:
        """The JSON of a read that must answer `expect`."""
        return _checked(await self.http.get(path, **options), expect)

    async def post(self, path: str, body: Any = None, *, expect: int = 200, **options: Any) -> Json:
        return _checked(await self.http.post(path, json=body, **options), expect)

    async def put(self, path: str, body: Any, *, expect: int = 200) -> Json:
        return _checked(await self.http.put(path, json=body), expect)

    # --- jobs

    async def submit(
        self, plugin: str, input: Json | None = None, *, key: str | None = None, **body: Any
    ) -> httpx2.Response:
        """POST /v1/jobs; further members of the body by name. Without `key`, a fresh one."""
        return await self.http.post(
            "/v1/jobs",
            json={"plugin": plugin, "input": input or {}, **body},
            headers={"Idempotency-Key": key or fresh_key()},
        )

    async def accepted(self, plugin: str, input: Json | None = None, *, key: str | None = None, **body: Any) -> str:
        """The id of a job that must be accepted as new. As a service does: where the process is full, later again."""
        key = key or fresh_key()
        ends = time.monotonic() + FULL_S
        while (answer := await self.submit(plugin, input, key=key, **body)).status_code == 429:
            if problem(answer)[1] != "too-many-requests" or time.monotonic() > ends:
                break
            await asyncio.sleep(float(answer.headers["Retry-After"]))
        return _checked(answer, 202)["job_id"]

    async def status(
        self, job: str, *, after: str | None = None, limit: int | None = None, wait: int | None = None
    ) -> Json:
        """GET /v1/jobs/{job}. Units: `wait` in seconds."""
        asked = {"after": after, "limit": limit}
        headers = {"Prefer": f"wait={wait}"} if wait is not None else {}
        params = {name: value for name, value in asked.items() if value is not None}
        return await self.get(f"/v1/jobs/{job}", params=params, headers=headers)

    async def events(self, job: str, after: str = "0") -> list[Json]:
        """Every event after the cursor that is recorded now, over all pages."""
        found: list[Json] = []
        while True:
            page = await self.status(job, after=after, limit=500)
            found += page["events"]
            # Without a worker `has_more` stays true on a page that brings nothing new.
            if not page["has_more"] or not page["events"]:
                return found
            after = page["next_cursor"]

    async def event_types(self, job: str) -> list[str]:
        return [event["type"] for event in await self.events(job)]

    @asynccontextmanager
    async def stream(
        self, job: str, *, after: str | None = None, last_event_id: str | None = None
    ) -> AsyncGenerator[AsyncIterator[StreamEvent]]:
        """`async with client.stream(job) as events: async for event in events`. Ends where the server ends it."""
        headers = {"Accept": "text/event-stream"}
        if last_event_id is not None:
            headers["Last-Event-ID"] = last_event_id
        params = {"after": after} if after is not None else {}
        async with self.http.stream("GET", f"/v1/jobs/{job}/events", params=params, headers=headers) as response:
            if response.status_code != 200:
                await response.aread()
                _checked(response, 200)
            yield _frames(response)

    async def streamed(self, job: str, **where: Any) -> list[StreamEvent]:
        """Every frame until the server ends the stream."""
        async with self.stream(job, **where) as events:
            return [event async for event in events]

    async def cancel(self, job: str) -> httpx2.Response:
        return await self.http.post(f"/v1/jobs/{job}/cancel")

    # --- requests

    async def request(self, job: str, request_id: str) -> Json:
        return await self.get(f"/v1/jobs/{job}/requests/{request_id}")

    async def decide(
        self,
        job: str,
        request_id: str,
        decision: Any,
        *,
        digest: str | None = None,
        answer: Any = None,
        reason: str | None = None,
    ) -> httpx2.Response:
        """POST .../decision. Without `digest`, the one that the request shows."""
        if digest is None:
            digest = (await self.request(job, request_id))["action_digest"]
        body = {"decision": decision, "action_digest": digest, "answer": answer, "reason": reason}
        return await self.http.post(f"/v1/jobs/{job}/requests/{request_id}/decision", json=body)

    # --- waiting

    async def until_status(self, job: str, *wanted: str, timeout: float = 30.0) -> Json:
        """The first view whose status is one of `wanted`."""

        async def reached() -> Json | None:
            view = await self.status(job)
            return view if view["status"] in wanted else None

        return await wait_until(reached, timeout, every=0.05, what=f"{job} is {' or '.join(wanted)}")

    async def until_ended(self, job: str, timeout: float = 30.0) -> Json:
        return await self.until_status(job, *TERMINAL, timeout=timeout)

    async def until_request(self, job: str, timeout: float = 30.0, *, count: int = 1) -> list[str]:
        """The ids of the open requests as soon as there are `count`."""

        async def opened() -> list[str]:
            pending = (await self.status(job))["pending"]
            return [item["request_id"] for item in pending] if len(pending) >= count else []

        return await wait_until(opened, timeout, every=0.05, what=f"{job} has {count} open requests")

    async def give_up(self, job: str, by: "Client", timeout: float = 30.0) -> Json:
        """The end of a job whose write is in doubt, once `by` has settled that nobody can tell."""
        [request] = await self.until_request(job, timeout)
        settled = await by.decide(job, request, "settle", answer="stop")
        assert settled.is_success, settled.text
        return await self.until_ended(job, timeout)

    async def until_event(self, job: str, type: str, timeout: float = 30.0, *, count: int = 1) -> Json:
        """The `count`-th event of this type."""

        async def seen() -> Json | None:
            found = [event for event in await self.events(job) if event["type"] == type]
            return found[count - 1] if len(found) >= count else None

        return await wait_until(seen, timeout, every=0.05, what=f"{job} has {count} events {type}")


_numbers = itertools.count(1)
_RUN = uuid.uuid4().hex[:8]


def fresh_key() -> str:
    """A key that no other test of this or another run uses; readable in the Temporal UI."""
    return f"t-{_RUN}-{next(_numbers)}"


def problem(response: httpx2.Response) -> tuple[int, str]:
    """Status and code of a problem document; anything else is an error of the test."""
    assert response.headers["Content-Type"] == "application/problem+json", response.text[:500]
    document: Mapping[str, Any] = response.json()
    assert document["status"] == response.status_code
    return response.status_code, document["code"]


async def _frames(response: httpx2.Response) -> AsyncIterator[StreamEvent]:
    async for frame in httpx2.EventSource(response):
        if frame.data:
            yield StreamEvent(frame.id, frame.event, json.loads(frame.data))


def _checked(response: httpx2.Response, expect: int) -> Json:
    shown = f"{response.request.method} {response.request.url.path}: {response.status_code} {response.text[:1000]}"
    assert response.status_code == expect, shown
    return response.json()
