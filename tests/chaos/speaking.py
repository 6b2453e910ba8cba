"""Clients that know what to do when nobody answers: ask another process, and ask again. What they heard is kept here.

An answer that says try later (429, 502, 503, 504) and no answer at all are the same to them. The record only grows.
"""

import asyncio
import json
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx2

from tests.chaos.facts import CancelFacts, OddAnswer, RevocationFacts, Told, VerdictFacts, WatchFacts
from tests.rig.client import Client, Json
from tests.rig.stack import Stack

LATER = frozenset({429, 500, 502, 503, 504})
PATIENCE_S = 6.0
"""How long a client waits for one answer: longer than the request clock."""


@dataclass(frozen=True)
class Reply:
    status: int
    body: bytes
    asked_ns: int
    answered_ns: int
    media_type: str = "application/json"

    @property
    def is_problem(self) -> bool:
        return self.media_type == "application/problem+json"

    @property
    def json(self) -> Json:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """Of a problem document; nothing for an answer that is none, or no error."""
        return self.json.get("code", "") if self.status >= 400 and self.is_problem else ""


@dataclass
class Record:
    """What clients were told during one run."""

    told: dict[str, list[Told]] = field(default_factory=lambda: defaultdict(list))
    seen: dict[str, dict[str, list[str]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))
    retries: dict[str, str] = field(default_factory=dict[str, str])
    """New key by the key of its source."""
    cancels: list[CancelFacts] = field(default_factory=list[CancelFacts])
    verdicts: list[VerdictFacts] = field(default_factory=list[VerdictFacts])
    revocations: list[RevocationFacts] = field(default_factory=list[RevocationFacts])
    watches: list[WatchFacts] = field(default_factory=list[WatchFacts])
    odd: list[OddAnswer] = field(default_factory=list[OddAnswer])
    answers: Counter[str] = field(default_factory=Counter[str])
    """How often each verb got which answer."""

    def accepted(self, key: str) -> bool:
        return any(told.status in (200, 202) for told in self.told[key])


class Speaker:
    """One principal, who knows every API process."""

    def __init__(self, stack: Stack, record: Record, who: str, *, groups: tuple[str, ...] = ()) -> None:
        self.who = who
        self.record = record
        self._clients: list[Client] = [
            stack.client(who, api=number, groups=groups) for number in range(len(stack.apis))
        ]

    @property
    def apis(self) -> int:
        return len(self._clients)

    def client(self, api: int) -> Client:
        return self._clients[api % self.apis]

    async def ask(
        self,
        what: str,
        method: str,
        path: str,
        body: Any = None,
        *,
        api: int = 0,
        headers: Mapping[str, str] | None = None,
        patience: float = PATIENCE_S,
    ) -> Reply | None:
        """One try at one process; None: no answer. `what` names the verb in the counts."""
        asked = time.monotonic_ns()
        try:
            async with asyncio.timeout(patience + 1):
                got = await self.client(api).http.request(
                    method, path, json=body, headers=dict(headers or {}), timeout=patience
                )
        except (httpx2.HTTPError, TimeoutError):
            self.record.answers[f"{what}: none"] += 1
            return None
        reply = Reply(got.status_code, got.content, asked, time.monotonic_ns(), got.headers.get("content-type", ""))
        self.record.answers[f"{what}: {reply.status} {reply.code}".rstrip()] += 1
        if reply.status == 500 or (reply.status >= 400 and not reply.is_problem):
            self.record.odd.append(OddAnswer(f"{method} {path}", reply.status, got.text[:500]))
        return reply

    async def insist(
        self,
        what: str,
        method: str,
        path: str,
        body: Any = None,
        *,
        api: int = 0,
        headers: Mapping[str, str] | None = None,
        at_most_s: float = 60.0,
    ) -> Reply | None:
        """Asks every process in turn until one says something that stands; None when nobody did in time."""
        ends = time.monotonic() + at_most_s
        while time.monotonic() < ends:
            reply = await self.ask(what, method, path, body, api=api, headers=headers)
            if reply is not None and reply.status not in LATER:
                return reply
            api += 1
            await asyncio.sleep(0.2)
        return None

    async def status(self, job: str, api: int = 0, **options: Any) -> Json | None:
        """One read of an accepted job; what only an unknown one may be answered is odd."""
        reply = await self.ask("read", "GET", f"/v1/jobs/{job}", api=api, **options)
        if reply is not None and reply.status == 404 and self.record.accepted(job):
            self.record.odd.append(OddAnswer(f"GET /v1/jobs/{job}", 404, "it was accepted before"))
        return reply.json if reply is not None and reply.status == 200 else None
