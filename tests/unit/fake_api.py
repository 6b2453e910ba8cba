"""A small HTTP server that answers what a test says: for the command line alone, where no Jobgate is needed."""

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


@dataclass(frozen=True)
class Asked:
    """One request as it arrived."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: str

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Canned:
    """One answer. With `cut` the connection breaks off after the body, which then has no proper end."""

    status: int = 200
    body: str = "{}"
    kind: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    cut: bool = False


def problem(status: int, code: str, **members: Any) -> Canned:
    document = {"type": f"urn:jobgate:problem:{code}", "title": f"Title of {code}", "status": status, "code": code}
    return Canned(status, json.dumps({**document, **members}), "application/problem+json")


def stream(events: Sequence[Mapping[str, Any]], *, cut: bool = False) -> Canned:
    """Frames of these events; the cursor of one is its seq, or `end`."""
    frames = [f"id: {event['seq'] or 'end'}\nevent: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events]
    return Canned(200, "retry: 2000\n\n: ping\n\n" + "".join(frames), "text/event-stream", cut=cut)


class FakeApi:
    """`answers[("GET", "/v1/jobs")]` is a list: each request takes the next, the last one stays."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.answers: dict[tuple[str, str], list[Canned]] = {}
        api = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                length = int(self.headers.get("Content-Length", 0))
                asked = Asked(self.command, self.path, dict(self.headers), self.rfile.read(length).decode())
                api.asked.append(asked)
                queue = api.answers.get((asked.method, asked.path.partition("?")[0]), [problem(404, "not-found")])
                canned = queue.pop(0) if len(queue) > 1 else queue[0]
                body = canned.body.encode()
                self.send_response(canned.status)
                self.send_header("Content-Type", canned.kind)
                self.send_header("Content-Length", str(len(body) + (100 if canned.cut else 0)))
                for name, value in canned.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST = do_PUT = do_DELETE = answer

            def log_message(self, format: str, *args: Any) -> None:
                del format, args

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
