"""A log that can not be written stops nobody, and says later how much of it is missing."""

import json
import os
from pathlib import Path

import pytest

from gateway.logstream import LogStream
from gateway.telemetry import configure_logging, log

FULL = Path("/dev/full")


class Disk:
    """A text stream whose disk may be full."""

    def __init__(self) -> None:
        self.full = False
        self.lines: list[str] = []

    def write(self, text: str) -> int:
        if self.full:
            raise OSError(28, os.strerror(28))
        self.lines.append(text)
        return len(text)

    def flush(self) -> None:
        if self.full:
            raise OSError(28, os.strerror(28))


def test_what_is_lost_is_counted_and_told_with_the_next_line() -> None:
    disk = Disk()
    stream = LogStream(disk)  # pyright: ignore[reportArgumentType]  # as much of one as is used
    stream.write("one\n")
    disk.full = True
    stream.write("two\n")
    stream.write("three\n")
    disk.full = False
    stream.write("four\n")
    stream.write("five\n")
    assert [disk.lines[0], *disk.lines[2:]] == ["one\n", "four\n", "five\n"]
    told = json.loads(disk.lines[1])
    assert (told["level"], told["lines"]) == ("warning", 2)


@pytest.mark.skipif(not FULL.exists(), reason="no /dev/full here")
def test_a_full_disk_is_no_error_of_whoever_logs() -> None:
    with FULL.open("w") as full:
        with pytest.raises(OSError, match="28"):
            print("the mutant: a plain stream", file=full, flush=True)
        configure_logging("test", stream=full)
        log.error("a request failed", exc_info=ValueError())
        # What was kept back by Python is let go, or closing would raise.
        with Path(os.devnull).open("w") as nowhere:
            os.dup2(nowhere.fileno(), full.fileno())
