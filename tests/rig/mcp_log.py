"""A real MCP server (the SDK's, streamable HTTP) as a test holds it: what it offers, how it answers, what it was sent.

It owns the process, and the two files between it and the test: what to do (`told.json`, read at every request) and what
came (`came.jsonl`, every HTTP request before it is answered).
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.rig.process import Process
from tests.rig.waiting import wait_until

CALL = "tools/call"


@dataclass(frozen=True, slots=True)
class Came:
    """One HTTP request. `rpc` is the JSON-RPC method of its message, or the HTTP verb where it holds none."""

    rpc: str
    verb: str
    headers: Mapping[str, str]
    message: Mapping[str, Any]

    @property
    def meta(self) -> Mapping[str, Any]:
        return self.message.get("params", {}).get("_meta", {})

    @property
    def args(self) -> Any:
        return self.message["params"]["arguments"]


class McpLog:
    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._address = folder / "mcp.address"
        self._process = Process("mcp-server", ["-m", "tests.rig.mcp_server", "--folder", str(folder)], folder)
        self.url = ""

    def start(self) -> None:
        self._address.unlink(missing_ok=True)
        self.tell()
        self._process.start()
        self.url = self._process.address_from(self._address) + "/mcp"

    def stop(self) -> None:
        self._process.stop()

    def tell(self, tools: Mapping[str, Any] | None = None, raw: Mapping[str, Any] | None = None) -> None:
        """`tools`: by name, members of the listing (`annotations`, `outputSchema`) and `answer`, a CallToolResult or
        `{"rpc_error": code}`, `{"echo_headers": true}`. `raw`: by JSON-RPC method, an HTTP answer in the SDK's stead:
        `{"status", "headers", "body"}`, `{"size"}` of a JSON text, `{"endless": true}`, `{"silent": true}`."""
        new = self._folder / "told.new"
        new.write_text(json.dumps({"tools": dict(tools or {}), "raw": dict(raw or {})}))
        os.replace(new, self._folder / "told.json")
        (self._folder / "came.jsonl").write_text("")

    def came(self, rpc: str | None = None) -> list[Came]:
        lines = (self._folder / "came.jsonl").read_text().splitlines()
        return [one for one in (Came(**json.loads(line)) for line in lines) if rpc in (None, one.rpc)]

    async def wait_for(self, rpc: str, count: int = 1) -> list[Came]:
        def enough() -> list[Came]:
            found = self.came(rpc)
            return found if len(found) >= count else []

        return await wait_until(enough, 15, what=f"{count} of {rpc}")
