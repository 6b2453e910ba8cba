"""What a stack of processes on one machine needs: child processes, free ports, and a folder held by one stack.

A child is itself (no shell, no wrapper stays), logs to a file, and does not outlive its parent.
Each is the leader of its own session, so that a Ctrl-C in the terminal reaches the parent alone. It is tied to
the parent by PR_SET_PDEATHSIG, set after the fork and kept over exec: the parent may have threads, where running
Python between fork and exec could deadlock. The kernel ties it to the *thread* that starts it: use the main thread.
"""

import asyncio
import fcntl
import os
import signal
import socket
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from workflows.contract.errors import JobgateError

_TIE_AND_EXEC = """
import os, sys
if sys.platform == "linux":
    import ctypes
    ctypes.CDLL(None).prctl(1, 9)
if os.getppid() != int(sys.argv[1]):
    os._exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""


class CannotStart(JobgateError):
    """The stack can not start; one line that says what to do."""

    def __init__(self, detail: str) -> None:
        super().__init__("dev-failed", detail)


@contextmanager
def sole_on(folder: Path, *transient: str) -> Generator[Path]:
    """Holds the folder's lock; the kernel frees it with this process, however that ends.

    The `transient` files in it say that a stack runs: they are removed at both ends.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / "dev.lock").open("a+")
    except OSError as error:
        raise CannotStart(f"{folder} can not be used as data folder ({error.strerror})") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.seek(0)
            raise CannotStart(
                f"another `jobgate dev` (pid {lock.read().strip()}) runs on {folder}: stop it, or choose --data"
            ) from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        _remove(folder, transient)
        try:
            yield folder
        finally:
            _remove(folder, transient)


def _remove(folder: Path, names: Sequence[str]) -> None:
    for name in names:
        (folder / name).unlink(missing_ok=True)


@dataclass(frozen=True)
class Ports:
    """The three ports, each held by a listening socket until its process is about to start."""

    held: dict[str, socket.socket]
    numbers: dict[str, int]

    @classmethod
    def reserve(cls, asked: dict[str, int]) -> Self:
        held: dict[str, socket.socket] = {}
        for flag, port in asked.items():
            try:
                held[flag] = socket.create_server(("127.0.0.1", port))
            except (OSError, OverflowError):
                for other in held.values():
                    other.close()
                raise CannotStart(
                    f"port {port} is in use or not allowed: choose another with {flag} (0: a free one)"
                ) from None
        return cls(held, {flag: sock.getsockname()[1] for flag, sock in held.items()})

    def release(self, *flags: str) -> None:
        for flag in flags:
            self.held[flag].close()


@dataclass(frozen=True, eq=False)
class Child:
    name: str
    process: asyncio.subprocess.Process
    log: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def running(self) -> bool:
        return self.process.returncode is None

    async def ended(self) -> str:
        """Waits for the end and says how it came: `exit code 3` or `SIGKILL`."""
        code = await self.process.wait()
        return f"exit code {code}" if code >= 0 else signal.Signals(-code).name

    async def stop(self, grace_s: float) -> bool:
        """SIGTERM, and SIGKILL where it is still there after `grace_s`; False if that was needed."""
        if not self.running:
            return True
        self.process.terminate()
        try:
            async with asyncio.timeout(grace_s):
                await self.process.wait()
        except TimeoutError:
            await self.kill()
            return False
        return True

    async def kill(self) -> None:
        if self.running:
            self.process.kill()
        await self.process.wait()


async def start_child(name: str, command: Sequence[str], logs: Path) -> Child:
    """Starts `command` (its first word an absolute path) with this process's environment; output goes to its log.

    The log of the start before is kept as `NAME.log.1`.
    """
    log = _fresh_log(name, logs)
    with log.open("wb") as out:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", "-c", _TIE_AND_EXEC, str(os.getpid())),
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    return Child(name, process, log)


def _fresh_log(name: str, logs: Path) -> Path:
    logs.mkdir(parents=True, exist_ok=True)
    log = logs / f"{name}.log"
    if log.exists():
        log.replace(log.with_name(f"{name}.log.1"))
    return log
