"""How a command reaches the API: where it is, as whom it calls, and what may go wrong on the way.

HTTP only: nothing of the engine, the ledger or a worker is imported here. In development, without `JOBGATE_TOKEN`,
a token is signed with the data folder's key for the seeded principal that fits the command; never for another URL
than the one that the folder's own stack serves.
"""

import json
import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, cast
from urllib.parse import quote

import httpx2
import typer

from gateway.settings import Settings, load_settings, read_dev_file

Json = dict[str, Any]
Role = Literal["app", "operator", "approver"]

CONNECT_WITHIN_S = 5.0
ANSWER_WITHIN_S = 40.0
"""Longer than the longest request clock, and than three pings of a stream."""
_NAMEABLE = re.compile(r"[A-Za-z0-9]")


@dataclass(frozen=True)
class Reply:
    """An HTTP answer. `text` is its body, byte for byte as far as it is UTF-8."""

    status: int
    text: str
    headers: Mapping[str, str]

    @cached_property
    def json(self) -> Json:
        """The body as an object; empty where it is none."""
        try:
            value: Any = json.loads(self.text)
        except ValueError:
            return {}
        return cast("Json", value) if isinstance(value, dict) else {}


class Rejected(Exception):
    """The API said no: a problem document, or some other answer outside 2xx."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(f"HTTP {reply.status}")
        self.reply = reply
        self.code = str(reply.json.get("code", ""))

    @property
    def retryable(self) -> bool:
        return self.reply.json.get("retryable") is True or self.reply.status in (502, 503, 504)


class Unreachable(Exception):
    """No answer. `sent` tells whether the request may have arrived."""

    def __init__(self, detail: str, *, sent: bool = False) -> None:
        super().__init__(detail)
        self.sent = sent


@dataclass(frozen=True)
class Frame:
    """One event of a stream; `id` is the cursor behind it."""

    id: str
    event: Json


class Gateway:
    """The API as one principal sees it. Where it is and which token it takes is looked up again on every `renew`."""

    def __init__(self, data: Path | None, principal: str, groups: Sequence[str] = ()) -> None:
        """`principal` and `groups` matter in development only, where the token is signed here."""
        self._data = data
        self._principal = principal
        self.groups = tuple(groups)
        self.renew()

    def renew(self) -> None:
        """Reads anew where the API is: a stack started again may serve elsewhere, and tokens expire."""
        self.settings = load_settings(data=self._data)
        self.url = self.settings.url or ""
        if not self.url:
            raise Unreachable(f"no `jobgate dev` runs on {self.settings.data}, and JOBGATE_URL is not set")
        self.token, self.caller = _credential(self.settings, self._principal, self.groups)
        self._http = httpx2.Client(
            base_url=self.url,
            headers={"Authorization": f"Bearer {self.token}"} if self.token else {},
            timeout=httpx2.Timeout(ANSWER_WITHIN_S, connect=CONNECT_WITHIN_S),
            trust_env=False,
        )

    def renew_if_served(self) -> None:
        """`renew`, where something says that the API is up; else all stays as it is."""
        with suppress(Unreachable):
            self.renew()

    def join(self, groups: Sequence[str]) -> None:
        """Development only: call from now on as a member of `groups`."""
        self.groups = tuple(groups)
        self.renew()

    @property
    def signs_itself(self) -> bool:
        """Whether the token was made here, for a seeded principal of the development stack."""
        return self.settings.token is None and self.token is not None

    def get(self, path: str, params: Mapping[str, str | int | None] | None = None) -> Reply:
        asked = {name: value for name, value in (params or {}).items() if value is not None}
        return self._send("GET", path, params=asked)

    def post(self, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Reply:
        """`body`: a JSON text, sent as it is, or a value."""
        return self._send("POST", path, **_content(body, headers))

    def put(self, path: str, body: Any) -> Reply:
        return self._send("PUT", path, **_content(body, None))

    def delete(self, path: str) -> Reply:
        return self._send("DELETE", path)

    @contextmanager
    def stream(self, path: str, cursor: str | None) -> Generator[Iterator[Frame]]:
        """The frames of an event stream behind `cursor` (None: from the start), until the server ends it."""
        headers = {"Accept": "text/event-stream", **({"Last-Event-ID": cursor} if cursor else {})}
        params = {} if cursor else {"after": "0"}
        try:
            with self._http.stream("GET", path, headers=headers, params=params) as response:
                if not response.is_success:
                    response.read()
                    raise Rejected(_reply(response))
                yield _frames(response)
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise self._unreachable(error) from None

    def _send(self, method: str, path: str, **options: Any) -> Reply:
        try:
            reply = _reply(self._http.request(method, path, **options))
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise self._unreachable(error) from None
        if not 200 <= reply.status < 300:
            raise Rejected(reply)
        return reply

    def _unreachable(self, error: Exception) -> Unreachable:
        before = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.UnsupportedProtocol, httpx2.InvalidURL)
        why = "the answer did not come in time" if isinstance(error, httpx2.TimeoutException) else "no answer came"
        if isinstance(error, before):
            why = "nobody answers there"
        return Unreachable(f"{why} ({self.url})", sent=not isinstance(error, before))


def segment(value: str) -> str:
    """`value` as one segment of a path. What clients would fold away (`..`) names nothing."""
    if not _NAMEABLE.search(value):
        raise typer.BadParameter("a name has at least one letter or digit")
    return quote(value, safe="")


def job_path(job: str) -> str:
    return f"/v1/jobs/{segment(job)}"


def _content(body: Any, headers: Mapping[str, str] | None) -> dict[str, Any]:
    if body is None:
        return {"headers": dict(headers or {})}
    text = body if isinstance(body, str) else json.dumps(body, ensure_ascii=False)
    return {"content": text.encode(), "headers": {"Content-Type": "application/json", **(headers or {})}}


def _reply(response: httpx2.Response) -> Reply:
    return Reply(response.status_code, response.content.decode("utf-8", "replace"), response.headers)


def _frames(response: httpx2.Response) -> Iterator[Frame]:
    for frame in httpx2.EventSource(response):
        if frame.data:
            yield Frame(frame.id, json.loads(frame.data))


def _credential(settings: Settings, principal: str, groups: Sequence[str]) -> tuple[str | None, str]:
    """The bearer token and, in words, whose it is."""
    if settings.token is not None:
        return settings.token.get_secret_value(), "the principal of JOBGATE_TOKEN"
    running = read_dev_file(settings.data)
    own = settings.development and (running is None or settings.url == running.api_url)
    if not own or not (settings.data / "keys").is_dir():
        return None, "nobody (JOBGATE_TOKEN is not set)"
    from gateway.scopes import DEMO
    from gateway.tokens import DevelopmentKey
    from workflows.contract.ids import PrincipalId

    key = DevelopmentKey.load(settings.data)
    token = key.mint(PrincipalId(principal), DEMO, groups=groups, issuer=settings.issuer, audience=settings.audience)
    return token, f"{principal} of workspace {DEMO} (development token)"
