"""The deny-list of the leak test: internal words, secrets, and the live values of the running stacks.

After api.md, "Never in any answer to an app": of an answer it says place and rule, never what stood there.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, cast

from tests.rig.answers import Answer

Json = dict[str, Any]

_OPERATORS = re.compile(
    r"/v1/operator/.*|/v1/runtime/.*|/readyz|/metrics|/v1/audit|/v1/openapi\.json|/v1/smokes.*"
    r"|.*/(?:readiness|simulations|promotions|demotions)"
)
"""Views for operators: there workers, lanes and ids of the engine are the point. Secrets are denied there too."""

_THEIRS = frozenset({"args", "content", "labels", "result"})
"""Members that hold what users, models and tools said, in their own words."""
_NAMES = frozenset(
    {"agent", "by", "decided_by", "id", "job_id", "jobs", "name", "open_job", "plugin", "principal", "retry_of"}
) | frozenset({"session", "tool", "workspace"})
"""Members that hold names which people chose."""

_CONTRACTS = frozenset({"worker_executed"})
"""Names that api.md itself gives to members."""
_SAID_TO_OPERATORS = frozenset({("deployPlugin", "host")})
"""(operation, rule): a deployment's own base_url has a host."""
_ALL_THEIRS = "getResult"

_WORDS: Mapping[str, re.Pattern[str]] = {
    rule: re.compile(rf"(?<![A-Za-z0-9])(?:{words})(?![A-Za-z0-9])", re.IGNORECASE)
    for rule, words in {
        "worker": "workers?",
        "task queue": r"task[ _-]?queues?|sticky|pollers?",
        "run id": r"run[ _-]?ids?|workflow[ _-]?ids?",
        "build id": r"build[ _-]?ids?",
        "lane": "lanes?",
        "route": "routes?",
        "host": r"hosts?|hostnames?|localhost|127\.0\.0\.1",
        "stack": r"stack|stack ?traces?|traceback.*",
        "engine": r"temporal(?:io)?|activity|activities|heartbeats?|namespaces?|grpc|sdk",
        "library": r"sqlalchemy|sqlite3?|aiosqlite|psycopg|pydantic(?:_ai)?|httpx2?|asyncio|uvicorn|starlette|fastapi",
    }.items()
}
_SHAPES: Mapping[str, re.Pattern[str]] = {
    "exception name": re.compile(r"\b[A-Z]\w*(?:Error|Exception)\b|\bRPCError\b"),
    "file path": re.compile(r"(?<![\w/:.-])/(?:home|work|tmp|usr|etc|var|root|opt|proc|srv|mnt)/|\bFile \"|\.py\b"),
    "worker identity": re.compile(r"\b\d+@[\w.-]+"),
    "workflow id": re.compile(r"(?<![\w.-])demo\.[A-Za-z0-9]"),
}
_WRITTEN: Mapping[str, re.Pattern[str]] = {**_WORDS, **_SHAPES}
_SECRETS: Mapping[str, re.Pattern[bytes]] = {
    "signed token": re.compile(rb"eyJ[\w-]{8,}\.eyJ[\w-]{8,}\."),
    "API key": re.compile(rb"jgk_[0-9A-Za-z]{12}_[\w-]{8,}"),
    "callback token": re.compile(rb"(?<![\w-])(?=[\w-]*[A-Z])(?=[\w-]*[a-z])(?=[\w-]*\d)[\w-]{64}(?![\w-])"),
}
_SHOWS_A_KEY = "createApiKey"
_SIGNATURE = re.compile(rb"[\w-]{40,}")
_ID = re.compile(rb"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_PLAIN = re.compile(r"[a-z][a-z_]{0,30}")
"""Names of ours look like this; another may be somebody's secret and is not shown."""


@dataclass(slots=True)
class Live:
    """Values of the running stacks, and what each is. `places` may be known to operators, `secrets` to nobody."""

    places: dict[str, str] = field(default_factory=dict[str, str])
    secrets: dict[str, str] = field(default_factory=dict[str, str])
    signatures: set[bytes] = field(default_factory=set[bytes])
    """The last parts of signed tokens."""


def denied(answer: Answer, operation: str, live: Live) -> Iterator[tuple[str, str]]:
    whole = b"\n".join([answer.body, *(value.encode("utf-8", "replace") for _, value in answer.headers)])
    for rule, shape in _SECRETS.items():
        allowed = rule == "API key" and operation == _SHOWS_A_KEY
        if not allowed and shape.search(whole):
            yield "/", rule
    if not live.signatures.isdisjoint(_SIGNATURE.findall(whole)):
        yield "/", "signature of a token"
    text = whole.decode("utf-8", "replace")
    yield from (("/", what) for value, what in live.secrets.items() if value in text)
    if _OPERATORS.fullmatch(answer.path):
        return
    for value, what in live.places.items():
        if value in text and re.search(rf"(?<![\w.-]){re.escape(value)}(?![\w-])", text):
            yield "/", what
    if operation == _ALL_THEIRS and answer.status == 200:
        return
    for body in answer.documents():
        for place, said in _texts(_read(body), ""):
            broken = (rule for rule in _broken_by(said) if (operation, rule) not in _SAID_TO_OPERATORS)
            yield from ((place or "/", rule) for rule in broken)


@lru_cache(maxsize=20_000)
def _broken_by(said: str) -> tuple[str, ...]:
    """Kept, because most texts of a run are the same few hundred."""
    return tuple(rule for rule, shape in _WRITTEN.items() if shape.search(said))


def _read(body: bytes) -> Any:
    """JSON, else the text itself."""
    try:
        return json.loads(body)
    except ValueError:
        return body.decode("utf-8", "replace")


def _texts(value: Any, place: str) -> Iterator[tuple[str, str]]:
    """Every member's name and every text that we wrote ourselves, with its place."""
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, list):
        for one in cast(list[Any], value):
            yield from _texts(one, f"{place}/[]")
    elif isinstance(value, dict):
        for name, one in cast(Json, value).items():
            there = f"{place}/{shown_name(name)}"
            if name not in _CONTRACTS:
                yield there, name
            if name not in _THEIRS and not (name in _NAMES and _is_names(one)):
                yield from _texts(one, there)


def _is_names(value: Any) -> bool:
    return isinstance(value, str) or (
        isinstance(value, list) and all(isinstance(one, str) for one in cast(list[Any], value))
    )


def ids_in(answer: Answer) -> set[bytes]:
    """What looks like an id of the engine in an answer that an app may see, to be compared later with its run ids."""
    return set() if _OPERATORS.fullmatch(answer.path) else set(_ID.findall(answer.body))


def shown_name(part: str) -> str:
    """A member's name as a rule may print it."""
    return part if _PLAIN.fullmatch(part) else "*"
