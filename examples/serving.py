"""How an example service runs: one process, one address written when it listens, exit 0 on SIGTERM or Ctrl-C.

It owns the command line the services share (`--db --port --address-file`) and the bearer check. It knows no plugin.
"""

import argparse
import contextlib
import hmac
import os
import socket
import sys
from collections.abc import Callable, Generator
from pathlib import Path

import uvicorn
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send


class BearerRequired:
    """Answers 401 to every request that does not carry `Authorization: Bearer <token>`."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._expected = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            given = Request(scope).headers.get("Authorization", "").encode()
            if not hmac.compare_digest(given, self._expected):
                refusal = JSONResponse({"error": "unauthenticated"}, 401, {"WWW-Authenticate": "Bearer"})
                await refusal(scope, receive, send)
                return
        await self._app(scope, receive, send)


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        # uvicorn raises the signal again after a graceful stop, which turns a clean end into exit code 143.
        with contextlib.suppress(KeyboardInterrupt), super().capture_signals():
            yield
            self._captured_signals.clear()


def run(build: Callable[[Path], ASGIApp], *, program: str, token_variable: str) -> int:
    """Serves `build(database path)` on 127.0.0.1 behind the bearer token of the environment; the exit code."""
    parser = argparse.ArgumentParser(prog=f"python -m {program}")
    parser.add_argument("--db", type=Path, required=True, help="the service's own SQLite file; made if it is missing")
    parser.add_argument("--port", type=int, default=0, help="0 picks a free one")
    parser.add_argument("--address-file", type=Path, help="where to write http://HOST:PORT; else standard output")
    options = parser.parse_args()
    token = os.environ.get(token_variable)
    if not token:
        parser.error(f"{token_variable} must be set: callers show it as `Authorization: Bearer`")
    listener = socket.create_server(("127.0.0.1", options.port), backlog=256)
    address = "http://{}:{}".format(*listener.getsockname()[:2])
    app = BearerRequired(build(options.db), token)
    if options.address_file is None:
        sys.stdout.write(address + "\n")
        sys.stdout.flush()
    else:
        partial = options.address_file.with_suffix(".partial")
        partial.write_text(address)
        partial.replace(options.address_file)
    config = uvicorn.Config(app, log_level="warning", lifespan="off", timeout_graceful_shutdown=2)
    _Server(config).run(sockets=[listener])
    return 0
