"""The MCP server's process: the SDK's own server, each request recorded first, and some answered in its stead.

Run: `python -m tests.rig.mcp_server --folder FOLDER`; see `tests.rig.mcp_log` for its files.
"""

import argparse
import asyncio
import json
import signal
import socket
from pathlib import Path
from typing import Any

import uvicorn
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolRequestParams, CallToolResult, ListToolsResult, PaginatedRequestParams, Tool
from starlette.types import ASGIApp, Message, Receive, Scope, Send

TEXT: dict[str, Any] = {"content": [{"type": "text", "text": "done"}]}


class Recorded:
    """Wraps the SDK's app: writes down each request, and answers itself where it was told to."""

    def __init__(self, app: ASGIApp, folder: Path) -> None:
        self._app = app
        self._folder = folder

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = b""
        while True:
            part = await receive()
            body += part.get("body", b"")
            if not part.get("more_body"):
                break
        message: dict[str, Any] = json.loads(body) if body else {}
        rpc: str = message.get("method", scope["method"])
        headers = {name.decode(): value.decode("latin-1") for name, value in scope["headers"]}
        with (self._folder / "came.jsonl").open("a") as file:
            record = {"rpc": rpc, "verb": scope["method"], "headers": headers, "message": message}
            file.write(json.dumps(record) + "\n")
        raw = told(self._folder)["raw"].get(rpc)
        if raw is not None:
            await _answer(raw, receive, send)
            return
        again: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            return again.pop() if again else await receive()

        await self._app(scope, replay, send)


async def _answer(raw: dict[str, Any], receive: Receive, send: Send) -> None:
    if raw.get("silent"):
        await receive()
        return
    kind = "text/event-stream" if raw.get("endless") else "application/json"
    headers = {"content-type": kind, **raw.get("headers", {})}
    listed = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": raw.get("status", 200), "headers": listed})
    if raw.get("endless"):
        gone = asyncio.ensure_future(receive())
        while not gone.done():
            await send({"type": "http.response.body", "body": b": still here\n\n", "more_body": True})
            await asyncio.sleep(0.02)
        return
    body = json.dumps("x" * raw["size"]) if "size" in raw else raw.get("body", "")
    await send({"type": "http.response.body", "body": body.encode(), "more_body": False})


def told(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "told.json").read_text())


def server_of(folder: Path) -> Server[Any]:
    async def list_tools(
        _context: ServerRequestContext[Any], _params: PaginatedRequestParams | None
    ) -> ListToolsResult:
        tools = [
            {"name": name, "inputSchema": {"type": "object"}, **{key: said[key] for key in said if key != "answer"}}
            for name, said in told(folder)["tools"].items()
        ]
        return ListToolsResult(tools=[Tool.model_validate(tool) for tool in tools])

    async def call_tool(context: ServerRequestContext[Any], params: CallToolRequestParams) -> CallToolResult:
        answer = told(folder)["tools"][params.name].get("answer", TEXT)
        if "rpc_error" in answer:
            raise MCPError(code=answer["rpc_error"], message=answer.get("message", "no"))
        if answer.get("echo_headers"):
            headers = dict(context.request.headers) if context.request is not None else {}
            answer = {
                "content": [{"type": "text", "text": json.dumps(headers)}],
                "isError": answer.get("isError", False),
            }
        return CallToolResult.model_validate(answer)

    return Server("rig", on_list_tools=list_tools, on_call_tool=call_tool)


async def serve(folder: Path) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    app = Recorded(server_of(folder).streamable_http_app(), folder)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="on", timeout_graceful_shutdown=1))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, setattr, server, "should_exit", True)
    address = f"http://127.0.0.1:{listener.getsockname()[1]}"
    listener.listen()
    waiting = folder / "mcp.address.new"
    waiting.write_text(address)
    waiting.replace(folder / "mcp.address")
    await server.serve(sockets=[listener])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    asyncio.run(serve(parser.parse_args().folder))
