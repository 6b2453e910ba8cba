"""One HTTP answer of the API as a test received it, for the rules that judge it."""

from collections.abc import Iterator
from dataclasses import dataclass

EVENT_STREAM = "text/event-stream"


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer, whole. `path` is as sent, without query; of a stream, `body` holds what came until it was left."""

    method: str
    path: str
    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def header(self, name: str) -> str:
        return next((value for key, value in self.headers if key.lower() == name), "")

    @property
    def media_type(self) -> str:
        return self.header("content-type").partition(";")[0].strip()

    def documents(self) -> Iterator[bytes]:
        """The body, or of a stream the data of every whole frame that has any."""
        if self.media_type != EVENT_STREAM:
            yield self.body
            return
        for frame in self.body.replace(b"\r\n", b"\n").split(b"\n\n")[:-1]:
            lines = [line[5:].removeprefix(b" ") for line in frame.split(b"\n") if line.startswith(b"data:")]
            if lines:
                yield b"\n".join(lines)
