"""A local OpenAI-compatible chat-completions server, scripted by the test and listening in a thread of it.

It owns the answers still to give and the requests it got. It checks nothing about them: that is the test's part.
Base URL for `openai-chat:NAME` models: `server.base_url`. A failure is the answer to any path, for all makers' models.
"""

import asyncio
import json
import threading
from collections import deque
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self, TypeVar

from tests.rig.wire import Arrival, Reply, WireServer

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ToolCall:
    name: str
    args: dict[str, Any] | str
    """A text is sent as it is: arguments that are no JSON."""


@dataclass(frozen=True, slots=True)
class Completion:
    """One answer of the model. `usage` None: the answer does not say what it cost."""

    text: str | None = None
    calls: Sequence[ToolCall] = ()
    usage: tuple[int, int] | None = (100, 20)
    delay_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Failure:
    """An error answer, given `times` times."""

    status: int
    times: int = 1
    headers: dict[str, str] = field(default_factory=dict[str, str])
    message: str = "scripted failure"
    delay_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One request as it came. Times: nanoseconds of the system-wide monotonic clock."""

    monotonic_ns: int
    path: str
    headers: tuple[tuple[str, str], ...]
    """Without Authorization: whether its value was the expected one is `authorized`."""
    authorized: bool
    body: dict[str, Any]

    @property
    def tools(self) -> list[str]:
        offered: list[dict[str, Any]] = self.body.get("tools") or []
        return [tool["function"]["name"] for tool in offered]

    @property
    def messages(self) -> list[dict[str, Any]]:
        return self.body["messages"]


class ModelServer:
    """`with ModelServer(api_key="k") as server: server.script(Completion(text="hello"))`. The last answer repeats."""

    def __init__(self, api_key: str = "test-model-key") -> None:
        self.api_key = api_key
        self.base_url = ""
        self.requests: list[ModelRequest] = []
        self._answers: deque[Completion | Failure] = deque()
        self._failed = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="model-server")
        self._server = WireServer(self._respond)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        self._thread.start()
        self._run(self._server.start())
        self.base_url = f"{self._server.url}/v1"

    def stop(self) -> None:
        self._run(self._server.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def script(self, *answers: Completion | Failure) -> None:
        """Replaces what is still to be answered, and forgets the requests so far."""

        async def replace() -> None:
            self._answers = deque(answers)
            self._failed = 0
            self.requests = []

        self._run(replace())

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _respond(self, arrival: Arrival) -> Reply:
        self.requests.append(
            ModelRequest(
                arrival.monotonic_ns,
                arrival.path,
                tuple(pair for pair in arrival.headers if pair[0] != "authorization"),
                arrival.header("authorization") == f"Bearer {self.api_key}",
                json.loads(arrival.body or b"{}"),
            )
        )
        answer = self._take()
        if answer.delay_seconds:
            await asyncio.sleep(answer.delay_seconds)
        if isinstance(answer, Failure):
            return Reply(answer.status, _error(answer.message), answer.headers)
        if arrival.path != "/v1/chat/completions":
            return Reply(404, _error("no such address"))
        model = self.requests[-1].body.get("model", "")
        return Reply(200, json.dumps(_completion(answer, model, len(self.requests))).encode())

    def _take(self) -> Completion | Failure:
        if not self._answers:
            return Failure(500, message="the test scripted no answer")
        answer = self._answers[0]
        if isinstance(answer, Failure):
            self._failed += 1
            if self._failed >= answer.times:
                self._answers.popleft()
                self._failed = 0
        elif len(self._answers) > 1:
            self._answers.popleft()
        return answer


def _error(message: str) -> bytes:
    return json.dumps({"error": {"message": message, "type": "scripted", "code": None}}).encode()


def _completion(answer: Completion, model: str, number: int) -> dict[str, Any]:
    calls = [
        {
            "id": f"call_{number}_{index}",
            "type": "function",
            "function": {
                "name": call.name,
                "arguments": call.args if isinstance(call.args, str) else json.dumps(call.args),
            },
        }
        for index, call in enumerate(answer.calls)
    ]
    message: dict[str, Any] = {"role": "assistant", "content": answer.text}
    if calls:
        message["tool_calls"] = calls
    body: dict[str, Any] = {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}],
    }
    if answer.usage is not None:
        read, written = answer.usage
        body["usage"] = {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}
    return body
