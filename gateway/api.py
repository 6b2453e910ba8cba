"""The API process: `python -m gateway.api` and `jobgate api`. SIGTERM and Ctrl-C drain, then it leaves with 0.

uvicorn would end by the signal itself (143), so its capture of signals is replaced. Streams see `should_exit` through
the handler (sse-starlette looks for it there) and end cleanly; other requests may finish within `api_grace_s`. Whoever
comes meanwhile, `/readyz` included, is told 503, so that balancers and clients go elsewhere.
"""

import asyncio
import contextlib
import math
import os
import resource
import signal
import socket
import sys
from collections.abc import Generator
from typing import cast

import uvicorn
from fastapi import FastAPI

from facade.routes import Serving
from gateway.app import create_app
from gateway.doors import Doors
from gateway.settings import Settings, load_settings
from gateway.telemetry import log, route_engine_logs, start_telemetry
from gateway.wire import Wire
from workflows.contract.errors import JobgateError

SEND_BUFFER_BYTES = 64 * 1024
FILES, SPARE_FILES = 16_384, 256
"""How many files the process may have, where the system lets it (many start with 1,024), and how many of them are kept
for what is no connection."""
LOOK_S = 0.05
IDLE_S = 75
"""How long an idle connection stays open: longer than clients (5 s) and proxies (60 s) keep one, because a request that
meets the closing of its connection has no answer."""


class _DrainingServer(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Polls that wait for news would outlast the grace; they are answered with what there is."""
        app = cast(FastAPI, self.config.app)
        doors = cast(Doors, app.state.doors)
        ends_at = asyncio.get_running_loop().time() + doors.settings.api_grace_s
        doors.places.close()
        cast(Serving, app.state.serving).window.watchers.drain()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(ends_at):
                while doors.places.taken and not self.force_exit:
                    await asyncio.sleep(LOOK_S)
        left_s = max(ends_at - asyncio.get_running_loop().time(), 0.0)
        self.config.timeout_graceful_shutdown = math.ceil(left_s)
        await super().shutdown(sockets)


def main() -> None:
    """Never returns: an SDK process can abort while the interpreter shuts down (design.md section 7)."""
    try:
        code = serve(load_settings())
    except JobgateError as error:
        sys.stderr.write(f"{error.detail}\n")
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def serve(settings: Settings) -> int:
    """Serves until a signal; 0, or 1 when it could not start (the log says why)."""
    telemetry = start_telemetry("api", settings)
    route_engine_logs()
    files = _allow_files()
    try:
        listener = _listen(settings)
    except OSError:
        log.error("port in use or not allowed", host=settings.api_host, port=settings.api_port)
        return 1
    log.info("listening", host=settings.api_host, port=listener.getsockname()[1])
    config = uvicorn.Config(
        create_app(settings, telemetry),
        http=Wire,
        log_config=None,
        access_log=False,
        server_header=False,
        limit_concurrency=max(files - SPARE_FILES, 1),
        timeout_keep_alive=IDLE_S,
    )
    try:
        _DrainingServer(config).run(sockets=[listener])  # on uvloop
    except SystemExit:
        log.error("the API could not start")
        return 1
    finally:
        telemetry.close()
    log.info("stopped")
    return 0


def _allow_files() -> int:
    """Raises the soft limit as far as the hard one allows; without it `streams_at_once` could not be reached."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < FILES:
        with contextlib.suppress(ValueError, OSError):  # some systems allow less than they say
            resource.setrlimit(resource.RLIMIT_NOFILE, (FILES if hard < 0 else min(FILES, hard), hard))
    return min(FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[0]) if soft >= 0 else FILES


def _listen(settings: Settings) -> socket.socket:
    """Accepted connections inherit the options. asyncio would set TCP_NODELAY only on sockets of its own making, and
    without it every answer waits 40 ms for the client's acknowledgement. The other two make a reader that takes no
    bytes noticed: a small send buffer fills soon, and the kernel gives up on it (Linux) where few bytes are waiting.
    """
    host = settings.api_host
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, settings.api_port), family=family, backlog=2048)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
    if sys.platform == "linux":
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(2000 * settings.stream_send_timeout_s))
    return listener


if __name__ == "__main__":
    main()
