"""The effect log's process: records every tool call at its arrival, then answers as it was told to.

It owns the SQLite file that judges what ran. `/tool/NAME[/...]` is a tool; `/control/...` is the test's.
Run: `python -m tests.rig.effect_log_server --db FILE --address-file FILE`.
"""

import argparse
import asyncio
import json
import signal
import sqlite3
from collections import defaultdict, deque
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote

from tests.rig.effect_log import SCHEMA, Answer, Behaviour
from tests.rig.wire import Arrival, Cut, Reply, WireServer


class EffectLogServer:
    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path, isolation_level=None)
        self._db.executescript(SCHEMA)
        self._behaviours: dict[str, deque[Behaviour]] = defaultdict(deque)
        self._used: dict[str, int] = defaultdict(int)
        self._released: dict[str, asyncio.Event] = defaultdict(asyncio.Event)

    async def respond(self, arrival: Arrival) -> Reply:
        _, kind, name, *_ = [*arrival.path.split("/"), "", ""]
        if kind == "tool":
            return await self._call(unquote(name), arrival)
        if kind == "control":
            return self._control(name, arrival)
        return Reply(404, b'{"error": "not-found"}')

    def _control(self, verb: str, arrival: Arrival) -> Reply:
        order: dict[str, Any] = json.loads(arrival.body or b"{}")
        if verb == "behave":
            tool = order["tool"]
            self._behaviours[tool] = deque(Behaviour(**item) for item in order["behaviours"])
            self._used[tool] = 0
            self._released[tool].set()
            self._released[tool] = asyncio.Event()
        elif verb == "release":
            self._released[order["tool"]].set()
        elif verb == "reset":
            for event in self._released.values():
                event.set()
            self._released.clear()
            self._behaviours.clear()
            self._used.clear()
            self._db.execute("DELETE FROM calls")
        return Reply()

    def _take(self, tool: str) -> Behaviour:
        """The behaviour of this call: the first of the list that is not used up; then a plain 200."""
        waiting = self._behaviours[tool]
        while waiting:
            now = waiting[0]
            if now.times is None or self._used[tool] < now.times:
                self._used[tool] += 1
                return now
            waiting.popleft()
            self._used[tool] = 0
        return Behaviour()

    async def _call(self, tool: str, arrival: Arrival) -> Reply:
        behaviour = self._take(tool)
        if behaviour.answer is Answer.DROP_BEFORE_RECORDING:
            raise Cut
        number = self._record(tool, arrival)
        if behaviour.answer is Answer.DROP_AFTER_RECORDING:
            raise Cut
        if behaviour.answer is Answer.HOLD:
            await self._released[tool].wait()
        if behaviour.delay_seconds:
            await asyncio.sleep(behaviour.delay_seconds)
        return self._compose(tool, number, behaviour, arrival)

    def _record(self, tool: str, arrival: Arrival) -> int:
        row = (
            arrival.monotonic_ns,
            arrival.wall_ns,
            arrival.method,
            arrival.path,
            tool,
            arrival.query,
            arrival.body,
            json.dumps(arrival.headers),
        )
        self._db.execute(
            "INSERT INTO calls (monotonic_ns, wall_ns, method, path, tool, query, body, headers)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            row,
        )
        return self._db.execute("SELECT count(*) FROM calls WHERE tool = ?", (tool,)).fetchone()[0]

    def _compose(self, tool: str, number: int, behaviour: Behaviour, arrival: Arrival) -> Reply:
        secret = arrival.header("authorization") or ""
        plain = behaviour.body if behaviour.body is not None else {"ok": True, "tool": tool, "n": number}
        status, headers = behaviour.status, dict(behaviour.headers)
        match behaviour.answer:
            case Answer.NOT_JSON:
                return Reply(status, b"<html>this is not JSON</html>", {"Content-Type": "text/html", **headers})
            case Answer.NAN:
                return Reply(status, b'{"value": NaN}', headers)
            case Answer.OVERSIZE:
                return Reply(status, json.dumps({"filler": "x" * behaviour.size}).encode(), headers)
            case Answer.REDIRECT:
                return Reply(307, b"", {"Location": "/tool/redirected", **headers})
            case Answer.ECHO_BODY:
                return Reply(
                    status, json.dumps({"you_sent": secret, "headers": dict(arrival.headers)}).encode(), headers
                )
            case Answer.ECHO_HEADERS:
                return Reply(status, json.dumps(plain).encode(), {"X-You-Sent": secret, **headers})
            case Answer.ECHO_ERROR:
                return Reply(500, json.dumps({"error": f"no access with {secret}"}).encode(), headers)
            case Answer.FIND:
                return Reply(status, json.dumps(self._find(arrival.query)).encode(), headers)
            case _:
                return Reply(status, json.dumps(plain).encode(), headers)

    def _find(self, query: str) -> dict[str, Any]:
        """A reconcile tool: was a call with this effect id recorded?"""
        wanted = parse_qs(query).get("effect_id", [""])[0]
        rows = self._db.execute("SELECT headers, tool FROM calls").fetchall()
        found = [tool for headers, tool in rows if ["idempotency-key", wanted] in json.loads(headers)]
        return {"found": bool(found), "result": {"tool": found[0]} if found else {}}

    def close(self) -> None:
        self._db.close()


async def _main(db: Path, address_file: Path) -> None:
    log = EffectLogServer(db)
    server = WireServer(log.respond)
    await server.start()
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    partial = address_file.with_suffix(".partial")
    partial.write_text(server.url)
    partial.replace(address_file)
    await ended.wait()
    await server.stop()
    log.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--db", type=Path, required=True)
    parser.add_argument("--address-file", type=Path, required=True)
    options = parser.parse_args()
    asyncio.run(_main(options.db, options.address_file))
