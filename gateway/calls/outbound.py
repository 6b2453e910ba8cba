"""One outbound request as a value, its reply, and the two ways it can have none: NotSent and ReplyLost.

Pure: what a request may hold is judged here, before anything leaves. Sending is `gateway.calls.egress`.
"""

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

import httpcore2
import httpx2

_METHOD = re.compile(r"[A-Z]{1,16}")
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_HEADER_VALUE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e\t]*[\x21-\x7e])?|")
OURS = frozenset({"host", "content-length", "transfer-encoding", "connection", "accept-encoding", "expect", "upgrade"})
"""Headers that only the door writes."""


class NotSent(httpx2.TransportError):
    """Nothing left: the request may be sent again, whatever it does."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class ReplyLost(httpx2.TransportError):
    """Bytes may have left and the outcome is not known. `status` is set where at least the reply's head arrived."""

    def __init__(self, reason: str, *, status: int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.status = status


class ReplyTooLarge(ReplyLost):
    """The reply's body passed the limit; `status` is known."""


@dataclass(frozen=True, slots=True)
class OutboundCall:
    """`url` is absolute, http or https. `timeout_s` is the whole call's time in seconds, `max_bytes` the body's limit.
    Headers are printable ASCII and may hold a credential, hence no repr."""

    method: str
    url: str
    headers: Mapping[str, str] = field(repr=False)
    body: bytes | None = field(repr=False)
    allow_private: bool
    timeout_s: float
    max_bytes: int


@dataclass(frozen=True, slots=True)
class OutboundReply:
    """Header names are lower case, repeated ones joined by a comma; values are latin-1 text as they came."""

    status: int
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)


def build(call: OutboundCall, trace: Callable[..., Awaitable[None]]) -> httpcore2.Request:
    """Raises NotSent for what can not be written as HTTP, so that no permit is spent on it."""
    try:
        url = httpx2.URL(call.url)
    except (httpx2.InvalidURL, ValueError):
        raise NotSent("The address is not a valid URL.") from None
    if url.scheme not in ("http", "https") or not url.raw_host or url.userinfo:
        raise NotSent("The address is not a plain http or https URL.")
    sound = all(_HEADER_NAME.fullmatch(name) and _HEADER_VALUE.fullmatch(call.headers[name]) for name in call.headers)
    if not sound or not _METHOD.fullmatch(call.method) or any(name.lower() in OURS for name in call.headers):
        raise NotSent("The request holds a method or header that may not be sent.")
    headers = {"host": url.netloc.decode("ascii"), "accept-encoding": "identity", "user-agent": "jobgate"}
    headers |= {name.lower(): value for name, value in call.headers.items()}
    if call.body is not None or call.method not in ("GET", "HEAD", "DELETE"):
        headers["content-length"] = str(len(call.body or b""))
    return httpcore2.Request(
        call.method,
        httpcore2.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
        headers=list(headers.items()),
        content=call.body or None,
        extensions={
            "trace": trace,
            "timeout": {
                "connect": call.timeout_s
            },  # for the shares of several addresses; the whole time is the exchange's
            "sni_hostname": url.raw_host.decode("ascii").rstrip("."),
        },
    )


def joined(headers: list[tuple[bytes, bytes]]) -> dict[str, str]:
    """By lower-case name, repeated ones joined by a comma, as latin-1 text."""
    found: dict[str, str] = {}
    for raw_name, raw_value in headers:
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
        found[name] = f"{found[name]}, {value}" if name in found else value
    return found
