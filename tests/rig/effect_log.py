"""The effect log, as a test holds it: the real HTTP service behind the tools, and the only judge of "did it run?".

It owns what a call and a behaviour are, and the process that records them. Calls are read from the log's own file,
so they can be read while the service is busy, hangs or is stopped. Times are system-wide and comparable to
`time.monotonic_ns()` of every other process on this machine.
"""

import http.client
import json
import sqlite3
from contextlib import closing
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.rig.process import Process
from tests.rig.waiting import wait_until

SCHEMA = """
PRAGMA journal_mode = wal;
PRAGMA synchronous = off;
CREATE TABLE IF NOT EXISTS calls (
    number INTEGER PRIMARY KEY AUTOINCREMENT, monotonic_ns INTEGER NOT NULL, wall_ns INTEGER NOT NULL,
    method TEXT NOT NULL, path TEXT NOT NULL, tool TEXT NOT NULL, query TEXT NOT NULL, body BLOB NOT NULL,
    headers TEXT NOT NULL);
"""


class Answer(StrEnum):
    """What a tool does with a call. All but DROP_BEFORE_RECORDING record it first."""

    PLAIN = "plain"
    """`status` with `body`, else `{"ok": true, "tool": ..., "n": ...}`."""
    HOLD = "hold"
    """Nothing until `release(tool)`: a hang that a test can end."""
    DROP_BEFORE_RECORDING = "drop_before_recording"
    DROP_AFTER_RECORDING = "drop_after_recording"
    NOT_JSON = "not_json"
    NAN = "nan"
    OVERSIZE = "oversize"
    """A JSON text of a little more than `size` bytes."""
    REDIRECT = "redirect"
    """307 to the tool `redirected`, which must then never be called."""
    ECHO_BODY = "echo_body"
    ECHO_HEADERS = "echo_headers"
    ECHO_ERROR = "echo_error"
    """500 with the Authorization value in its text."""
    FIND = "find"
    """A reconcile tool: `{"found": bool, "result": {}}` for the query's `effect_id`."""


@dataclass(frozen=True, slots=True)
class Behaviour:
    """How a tool answers `times` calls (None: for ever), after `delay_seconds`."""

    answer: Answer = Answer.PLAIN
    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict[str, str])
    delay_seconds: float = 0.0
    size: int = 5 << 20
    times: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "answer", Answer(self.answer))


@dataclass(frozen=True, slots=True)
class Call:
    """One recorded call, bytes as they came. Two calls of one effect have the same `idempotency_key`."""

    number: int
    monotonic_ns: int
    wall_ns: int
    method: str
    path: str
    tool: str
    query: str
    body: bytes
    headers: tuple[tuple[str, str], ...]

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key == name.lower()), None)

    @property
    def args(self) -> Any:
        """The JSON body, or the query's names with their lists of texts where there is no body."""
        return json.loads(self.body) if self.body else parse_qs(self.query, keep_blank_values=True)

    @property
    def idempotency_key(self) -> str | None:
        return self.header("idempotency-key")

    @property
    def epoch(self) -> int | None:
        value = self.header("jobgate-epoch")
        return int(value) if value is not None else None

    @property
    def job(self) -> str | None:
        return self.header("jobgate-job")

    @property
    def traceparent(self) -> str | None:
        return self.header("traceparent")

    @property
    def authorized(self) -> bool:
        """Whether an Authorization header came along; its value is for leak tests only, in `headers`."""
        return self.header("authorization") is not None


class EffectLog:
    """Starts, steers and reads one effect log. Methods answer in about a millisecond, so async tests call them too."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._db = folder / "effects.sqlite"
        self._address = folder / "effect-log.address"
        self._process = Process(
            "effect-log",
            ["-m", "tests.rig.effect_log_server", "--db", str(self._db), "--address-file", str(self._address)],
            folder,
        )
        self.url = ""

    def start(self) -> None:
        self._address.unlink(missing_ok=True)
        self._process.start()
        self.url = self._process.address_from(self._address)

    def stop(self) -> None:
        self._process.stop()

    def calls(self, tool: str | None = None, *, job: str | None = None) -> list[Call]:
        """Every recorded call in order of arrival, of one tool and one job where they are named."""
        with closing(sqlite3.connect(self._db)) as db:
            rows = db.execute("SELECT * FROM calls ORDER BY monotonic_ns, number").fetchall()
        calls = [Call(*row[:-1], headers=_pairs(row[-1])) for row in rows]
        return [call for call in calls if tool in (None, call.tool) and job in (None, call.job)]

    def set_behaviour(self, tool: str, *behaviours: Behaviour) -> None:
        """The tool's coming calls use these in turn, each for its `times`; after the last, plain 200s."""
        self._order("behave", {"tool": tool, "behaviours": [asdict(item) for item in behaviours]})

    def release(self, tool: str) -> None:
        """Lets every held call of the tool answer, and holds none of this behaviour any more."""
        self._order("release", {"tool": tool})

    def reset(self) -> None:
        """Forgets all calls and behaviours; held calls answer."""
        self._order("reset", {})

    async def wait_for_calls(
        self, tool: str, count: int = 1, timeout: float = 15.0, *, job: str | None = None
    ) -> list[Call]:
        """The calls of the tool as soon as there are `count`."""

        def enough() -> list[Call]:
            calls = self.calls(tool, job=job)
            return calls if len(calls) >= count else []

        return await wait_until(enough, timeout, what=f"{count} calls of {tool}")

    def _order(self, verb: str, order: dict[str, Any]) -> None:
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=10)
        with closing(connection):
            connection.request("POST", f"/control/{verb}", json.dumps(order), {"Content-Type": "application/json"})
            response = connection.getresponse()
            assert response.status == 200, f"the effect log answered {response.status}"


def _pairs(text: str) -> tuple[tuple[str, str], ...]:
    return tuple((name, value) for name, value in json.loads(text))
