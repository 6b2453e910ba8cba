"""A tool's HTTP request from its arguments, and a tool's outcome from the reply. Pure: no I/O, no clock.

The body is RFC 8785 of exactly the arguments that the path did not use: byte for byte what an approver was shown.
The outcome follows design.md section 6: a `write` is confirmed, failed or unknown; anything else is a result the model
sees, or an attempt worth repeating. Sending, credentials and scrubbing are others' business.
"""

import codecs
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any, Literal, NamedTuple, NoReturn
from urllib.parse import quote, unquote

from pydantic import JsonValue

from gateway.strictjson import canonical
from workflows.contract.errors import StepCode, StepError
from workflows.contract.job import EffectClass

TEXT_LIMIT = 16_000
"""Characters kept of an answer that is not JSON."""
MAX_DEPTH = 64
NOT_JSON = "The tool answered something that is not JSON."
_QUERY_METHODS = frozenset({"GET", "HEAD", "DELETE"})
_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_UNSAFE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")
_REPLACEMENT = "\ufffd"
_CHARSETS = frozenset({"utf-8", "ascii", "iso8859-1", "iso8859-15", "cp1252", "utf-16", "utf-16-le", "utf-16-be"})

State = Literal["ok", "error", "confirmed", "failed", "unknown", "pending"]


class ToolRequest(NamedTuple):
    url: str
    body: bytes | None


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """`read` and `idempotent_write` are ok or error, `write` is confirmed, failed or unknown; any of them is pending
    where the tool answers by a callback, which is waited for `until` then. `result` is what the tool said, `message` a
    fixed sentence about it where there is something to say. Neither is scrubbed yet."""

    state: State
    status: int
    result: JsonValue = None
    message: str | None = None
    until: datetime | None = None


def build_request(method: str, path_template: str, base_url: str, args: Mapping[str, JsonValue]) -> ToolRequest:
    """Raises StepError `rejected` for arguments the path can not hold, and for values without a canonical form."""
    if re.search(r"[?#]", base_url) or re.search(r"[?#\s]", path_template):
        _reject("The tool's base_url or path holds a query or a fragment.")
    path, used = _path(path_template, args)
    url = base_url.rstrip("/") + path
    rest = {name: value for name, value in args.items() if name not in used}
    try:
        if method in _QUERY_METHODS:
            query = "&".join(_query(rest))
            return ToolRequest(f"{url}?{query}" if query else url, None)
        return ToolRequest(url, canonical(rest))
    except (ValueError, RecursionError):
        _reject("An argument has no canonical JSON form.")


def _path(template: str, args: Mapping[str, JsonValue]) -> tuple[str, frozenset[str]]:
    segments = template.removeprefix("/").split("/")
    filled = [_PLACEHOLDER.sub(lambda found: _path_text(args, found[1]), segment) for segment in segments]
    for at, segment in enumerate(filled):
        closing_slash = at == len(filled) - 1 and not segments[at]
        if unquote(segment) in (".", "..") or (not segment and not closing_slash):
            _reject("A path segment would be empty, `.` or `..`.")
    return "/" + "/".join(filled), frozenset(_PLACEHOLDER.findall(template))


def _path_text(args: Mapping[str, JsonValue], name: str) -> str:
    value = args.get(name)
    if value is None or isinstance(value, list | dict):
        _reject("A path argument is missing or not a single value.")
    try:
        text = _scalar(value)
        # `%2F` is decoded by some servers before they resolve dot segments.
        if any(part in (".", "..") for part in re.split(r"[/\\]", text)):
            _reject("A path argument holds a dot segment.")
        return quote(text, safe="")
    except ValueError:
        _reject("A path argument is not text.")


def _query(rest: Mapping[str, JsonValue]) -> list[str]:
    """Sorted by name, so that equal arguments make equal requests."""
    return [
        f"{quote(name, safe='')}={quote(_scalar(item), safe='')}"
        for name in sorted(rest)
        for item in _items(rest[name])
        if item is not None
    ]


def _items(value: JsonValue) -> list[JsonValue]:
    return value if isinstance(value, list) else [value]


def _scalar(value: JsonValue) -> str:
    return value if isinstance(value, str) else canonical(value).decode()


def _reject(detail: str) -> NoReturn:
    raise StepError(StepCode.REJECTED, detail) from None


def read_outcome(
    effect: EffectClass, status: int, headers: Mapping[str, str], body: bytes, *, now: datetime | None = None
) -> ToolOutcome:
    """Raises StepError `rate_limited` or `unavailable`, never for a `write`. `now` (aware) serves a Retry-After date
    where the reply has no Date of its own."""
    named = {name.lower(): value for name, value in headers.items()}
    if effect == "write":
        return _write_outcome(status, named, body)
    if status in (408, 425, 429) or status >= 500:
        code = StepCode.RATE_LIMITED if status == 429 else StepCode.UNAVAILABLE
        raise StepError(code, f"The tool answered with status {status}.", retry_after_s=retry_after(named, now))
    if not 200 <= status < 300:
        return _unwelcome("error", status, named, body)
    try:
        return ToolOutcome("ok", status, _value(named, body))
    except ValueError:
        return ToolOutcome("error", status, None, NOT_JSON)


def _write_outcome(status: int, headers: Mapping[str, str], body: bytes) -> ToolOutcome:
    if 200 <= status < 300:
        try:
            return ToolOutcome("confirmed", status, _value(headers, body))
        except ValueError:
            return ToolOutcome("confirmed", status, None, NOT_JSON)
    failed = 400 <= status < 500 and status not in (408, 429)
    return _unwelcome("failed" if failed else "unknown", status, headers, body)


def _unwelcome(state: State, status: int, headers: Mapping[str, str], body: bytes) -> ToolOutcome:
    try:
        result = _value(headers, body)
    except ValueError:
        result = _text(headers, body)
    return ToolOutcome(state, status, result, f"The tool answered with status {status}.")


def _value(headers: Mapping[str, str], body: bytes) -> JsonValue:
    """Raises ValueError for what claims to be JSON and is not. An answer without a content type may be either."""
    media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    if not body.strip():
        return None
    if media_type == "application/json" or media_type.endswith(("+json", "/json")):
        return _json(body)
    if not media_type:
        try:
            return _json(body)
        except ValueError:
            return _text(headers, body)
    return _text(headers, body)


def _json(body: bytes) -> JsonValue:
    try:
        return _sound(_DECODER.decode(body.decode("utf-8-sig")), MAX_DEPTH)
    except RecursionError:
        raise ValueError(NOT_JSON) from None


def in_utf8(headers: Mapping[str, str], body: bytes) -> tuple[Mapping[str, str], bytes]:
    """The same reply with a body in UTF-16 told in UTF-8, so that a search in its bytes finds what it says. `headers`
    are lower-cased."""
    charset = _charset(headers)
    if not charset.startswith("utf-16"):
        return headers, body
    media_type = headers["content-type"].partition(";")[0]
    told = body.decode(charset, "replace").encode("utf-8", "replace")
    return {**headers, "content-type": f"{media_type}; charset=utf-8"}, told


def _charset(headers: Mapping[str, str]) -> str:
    declared = re.search(r"charset=\"?([A-Za-z0-9._-]+)", headers.get("content-type", ""))
    try:
        name = codecs.lookup(declared[1]).name if declared else "utf-8"
    except LookupError:
        return "utf-8"
    return name if name in _CHARSETS else "utf-8"


def _text(headers: Mapping[str, str], body: bytes) -> JsonValue:
    charset = _charset(headers)
    text = body[: 4 * TEXT_LIMIT + 4].decode(charset, "replace")
    cut = text if len(text) <= TEXT_LIMIT else text[: TEXT_LIMIT - 1] + "…"
    return {"text": _UNSAFE.sub(_REPLACEMENT, cut)} if cut else None


def _sound(value: JsonValue, depth: int) -> JsonValue:
    """Half surrogates and control characters become U+FFFD: later readers could not store or show them."""
    if isinstance(value, str):
        return _UNSAFE.sub(_REPLACEMENT, value)
    if not isinstance(value, list | dict):
        return value
    if depth == 0:
        raise ValueError("nested too deeply")
    if isinstance(value, list):
        return [_sound(item, depth - 1) for item in value]
    return _unique([(_UNSAFE.sub(_REPLACEMENT, key), _sound(item, depth - 1)) for key, item in value.items()])


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a key is repeated")
    return members


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("beyond a double")
    return number


def _no_constant(_name: str) -> NoReturn:
    raise ValueError("NaN and Infinity are not JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_float=_finite, parse_constant=_no_constant)


def retry_after(headers: Mapping[str, str], now: datetime | None) -> float | None:
    """Seconds (RFC 9110, 10.2.3). A date counts from the reply's own Date, so the two clocks need not agree."""
    asked = headers.get("retry-after", "").strip()
    if re.fullmatch(r"[0-9]{1,9}", asked):
        return float(asked)
    until, since = _http_date(asked), _http_date(headers.get("date", "")) or now
    return max((until - since).total_seconds(), 0.0) if until and since else None


def _http_date(text: str) -> datetime | None:
    try:
        date = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    return date if date.tzinfo is not None else None
