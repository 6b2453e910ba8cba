"""One child process of a test: started, killed, stopped, frozen and resumed by its own pid; its output kept in files.

It owns the signals. It never uses a shell, a process name or somebody else's pid. A child dies with the test run,
however that ends; the kernel ties it to the starting thread, so start it from the main one.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

_TIE_AND_EXEC = """
import os, sys
if sys.platform == "linux":
    import ctypes
    libc = ctypes.CDLL(None)
if sys.argv[2]:
    os.setgroups([])
    os.setgid(int(sys.argv[3]))
    os.setuid(int(sys.argv[2]))
if sys.platform == "linux":
    libc.prctl(1, 9)
if os.getppid() != int(sys.argv[1]):
    os._exit(1)
os.execv(sys.argv[4], sys.argv[4:])
"""
# The other user need not be able to read this Python, and changing the user would undo the tie: hence this order.


def outside_environment() -> dict[str, str]:
    """What a child inherits: nothing that points at a Jobgate, a Temporal or a proxy of whoever runs the tests."""
    ours = ("JOBGATE_", "TEMPORAL_")
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(ours) and not name.lower().endswith("_proxy")
    }


class Process:
    """`arguments` go to this Python, unless `program` names another executable. One object may be started again.

    `user` is the (uid, gid) it runs as, when it must not be ours.
    """

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        folder: Path,
        *,
        program: Path = Path(sys.executable),
        environment: Mapping[str, str] | None = None,
        user: tuple[int, int] | None = None,
    ) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self._command = [str(program), *arguments]
        self._user = [str(number) for number in user or ("", "")]
        self._environment = {**outside_environment(), **(environment or {})}
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._child is not None, f"{self.name} was not started"
        return self._child.pid

    @property
    def running(self) -> bool:
        return self._child is not None and self._child.poll() is None

    @property
    def exit_code(self) -> int | None:
        return self._child.poll() if self._child else None

    @property
    def output(self) -> str:
        """Everything it wrote so far, all starts together."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def start(self) -> None:
        assert not self.running, f"{self.name} is running"
        tie = [sys.executable, "-I", "-S", "-c", _TIE_AND_EXEC, str(os.getpid()), *self._user]
        with self.log.open("ab") as log:
            self._child = subprocess.Popen(
                [*tie, *self._command],
                cwd=ROOT,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                stdout=log,
                stderr=log,
            )

    def kill(self) -> None:
        """SIGKILL, as a crash; returns when it is gone."""
        self._end(signal.SIGKILL, 10)

    def stop(self, timeout: float = 20.0) -> int | None:
        """SIGTERM and its exit code. A process that does not end in time is killed and is an error."""
        if self._child is None:
            return None
        try:
            return self._end(signal.SIGTERM, timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(
                f"{self.name} did not end within {timeout} s of SIGTERM:\n{self.output[-2000:]}"
            ) from None

    def wait(self, timeout: float = 20.0) -> int:
        """The exit code, once it ends by itself."""
        assert self._child is not None, f"{self.name} was not started"
        return self._child.wait(timeout)

    def freeze(self) -> None:
        """SIGSTOP: it keeps its sockets and answers nothing. Returns when every thread has stopped (Linux)."""
        os.kill(self.pid, signal.SIGSTOP)
        ends = time.monotonic() + 5
        while any(_state(thread) != "T" for thread in Path(f"/proc/{self.pid}/task").glob("*")):
            assert time.monotonic() < ends, f"{self.name} does not stop"
            time.sleep(0.001)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def address_from(self, file: Path, timeout: float = 20.0) -> str:
        """The address the process writes to `file` once it listens."""
        ends = time.monotonic() + timeout
        while not file.exists():
            if not self.running or time.monotonic() > ends:
                raise AssertionError(f"{self.name} did not come up:\n{self.output[-2000:]}")
            time.sleep(0.01)
        return file.read_text().strip()

    def _end(self, number: signal.Signals, timeout: float) -> int | None:
        if self._child is None:
            return None
        if self._child.poll() is None:
            self._child.send_signal(number)
            if number is not signal.SIGKILL:
                self._child.send_signal(signal.SIGCONT)
        return self._child.wait(timeout)


def _state(thread: Path) -> str:
    """A thread's state letter (its name before it may hold anything but the last `)`); a gone one stands still too."""
    try:
        return (thread / "stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "T"
