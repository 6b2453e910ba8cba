"""Sends the probes of a smoke through the app itself, as the caller, and says which answers were not the expected ones.

In-process, so envelope, authentication and routes are the real ones; under a watch, so no door lets a change through,
whatever a probe meets.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx2
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.ground import MISSING, Ground
from gateway.probes import PROBES, Probe
from gateway.seams import Flag, Seen, watching

PROBE_S = 8.0


@dataclass(frozen=True, slots=True)
class Unexpected:
    """A probe that got another answer than the one it must get."""

    what: str
    expected: str
    got: str


@dataclass
class Exercised:
    """`tried`: how often a probe reached a door that would have changed something, and was refused there."""

    allowed: list[str] = field(default_factory=list[str])
    refused: list[str] = field(default_factory=list[str])
    unexpected: list[Unexpected] = field(default_factory=list[Unexpected])
    not_exercised: dict[str, str] = field(default_factory=dict[str, str])
    tried: Mapping[Flag, int] = field(default_factory=dict[Flag, int])


async def exercise(app: ASGIApp, authorization: str, ground: Ground, probes: Sequence[Probe] = PROBES) -> Exercised:
    """Every probe that can be sent now, one after the other."""
    done = Exercised()
    with watching() as seen:
        for probe in probes:
            if reason := _hindered(probe, ground):
                done.not_exercised[probe.what] = reason
            else:
                _note(done, probe, await _send(app, authorization, ground, probe))
    done.tried = _counts(seen)
    return done


def _counts(seen: Seen) -> Mapping[Flag, int]:
    return {flag: seen.counts[flag] for flag in seen.raised()}


def _hindered(probe: Probe, ground: Ground) -> str | None:
    missing = next((name for name in probe.needs if name not in ground.facts), None)
    if missing is not None:
        return MISSING[missing]
    if probe.scope is not None and probe.scope not in ground.may:
        return f"the caller has no scope or no grant of {probe.scope}"
    return None


def _note(done: Exercised, probe: Probe, got: tuple[int, str | None]) -> None:
    if got not in ((probe.status, probe.code), probe.instead):
        done.unexpected.append(Unexpected(probe.what, _text(probe.status, probe.code), _text(*got)))
    elif got[1] is None:
        done.allowed.append(probe.what)
    else:
        done.refused.append(f"{probe.what}: {_text(*got)}")


def _text(status: int, code: str | None) -> str:
    return f"{status} {code}" if code else str(status)


async def _send(app: ASGIApp, authorization: str, ground: Ground, probe: Probe) -> tuple[int, str | None]:
    headers: dict[str, str] = {}
    if probe.as_caller != "nobody":
        headers["Authorization"] = authorization if probe.as_caller == "caller" else "Bearer of.no.body"
    if probe.key is not None:
        headers["Idempotency-Key"] = probe.key.format_map(ground.facts)
    content = probe.body
    if content is not None:
        headers["Content-Type"] = probe.kind
        content = content if isinstance(content, bytes) else json.dumps(_filled(content, ground.facts)).encode()
    transport = httpx2.ASGITransport(_Dropping(app) if probe.drop else app, raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url="http://jobgate") as http:
        try:
            async with asyncio.timeout(PROBE_S):
                answer = await http.request(
                    probe.method, probe.path.format_map(ground.facts), headers=headers, content=content
                )
        except TimeoutError:
            return 0, "no answer in time"
    return answer.status_code, _code_of(answer)


def _code_of(answer: httpx2.Response) -> str | None:
    if answer.status_code < 400:
        return None
    try:
        return str(answer.json()["code"])
    except (ValueError, KeyError, TypeError):
        return "no problem document"


def _filled(value: Any, facts: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return value.format_map(facts)
    if isinstance(value, Mapping):
        return {name: _filled(each, facts) for name, each in value.items()}  # pyright: ignore[reportUnknownVariableType]  # JSON
    return value


class _Dropping:
    """The app behind a reader that goes once the first bytes have come."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun, ended = asyncio.Event(), False

        async def gone() -> Message:
            await begun.wait()
            return {"type": "http.disconnect"}

        async def take(message: Message) -> None:
            nonlocal ended
            await send(message)
            if message["type"] == "http.response.body":
                ended = not message.get("more_body", False)
                begun.set()

        await self._app(scope, gone, take)
        if not ended:
            await send({"type": "http.response.body", "body": b"", "more_body": False})
