"""Where the demo plays: a folder, the example shop and a whole `jobgate dev` as child processes, all of it throw-away.

It starts and ends them and looks into the shop's own file; what is played is gateway/cli/demo.py's. The children do
not outlive this process (gateway/processes.py), and no Jobgate or Temporal of the environment is touched.
"""

import asyncio
import os
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from gateway.processes import Child, start_child
from gateway.settings import DevFile, read_dev_file
from workflows.contract.errors import JobgateError

if TYPE_CHECKING:
    from examples.support_refund.shop import Refund

SERVING_WITHIN_S = 90.0
DEV_GRACE_S, SHOP_GRACE_S = 25.0, 5.0
ANY_PORTS = ("--api-port", "0", "--temporal-port", "0", "--ui-port", "0")


class StageFailed(JobgateError):
    """The demo's stack did not come up or went away; one line that says where to look."""

    def __init__(self, detail: str) -> None:
        super().__init__("demo-failed", detail)


@dataclass
class Stage:
    """`endings` tells how each process ended, once `stage()` is over: its exit code, 0 is right."""

    folder: Path
    runner: asyncio.Runner
    children: dict[str, Child] = field(default_factory=dict[str, Child])
    endings: dict[str, int | None] = field(default_factory=dict[str, int | None])
    pids: dict[str, int] = field(default_factory=dict[str, int])

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def refunds(self) -> "list[Refund]":
        """The shop's own table, read from its file."""
        from examples.support_refund.shop import table

        return table(self.folder / "shop.db")

    def start_shop(self) -> str:
        """The shop's address."""
        address = self.folder / "shop.address"
        arguments = ["--db", str(self.folder / "shop.db"), "--address-file", str(address)]
        self._start("shop", "examples.support_refund.shop", arguments)
        while not address.exists():
            self._tick("shop", 20.0)
        return address.read_text(encoding="utf-8")

    def start_dev(self) -> DevFile:
        """What the stack wrote once all of it serves."""
        self._start("dev", "gateway.cli", ["dev", "--data", str(self.data), *ANY_PORTS])
        while (running := read_dev_file(self.data)) is None:
            self._tick("dev", SERVING_WITHIN_S)
        self.pids = running.pids.model_dump()
        return running

    @property
    def left_running(self) -> list[str]:
        """What the stack said it runs and still does."""
        return [name for name, pid in self.pids.items() if _lives(pid)]

    def close(self) -> None:
        """Ends what runs, politely; a child that had to be killed has no exit code of 0."""
        for name, grace in (("dev", DEV_GRACE_S), ("shop", SHOP_GRACE_S)):
            if (child := self.children.get(name)) is not None:
                self.runner.run(child.stop(grace))
                self.endings[name] = child.process.returncode

    def _start(self, name: str, module: str, arguments: list[str]) -> None:
        command = [sys.executable, "-P", "-m", module, *arguments]
        self._started_at = time.monotonic()
        self.children[name] = self.runner.run(start_child(name, command, self.folder / "logs"))

    def _tick(self, name: str, within_s: float) -> None:
        """Waits a moment for `name`; raises StageFailed where there is nothing left to wait for."""
        child = self.children[name]
        self.runner.run(asyncio.sleep(0.05))
        if not child.running or time.monotonic() - self._started_at > within_s:
            said = child.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            last = said[-1] if said else "it said nothing"
            raise StageFailed(f"{name} did not come up: {last}\n`jobgate demo --keep` keeps the logs.")


@contextmanager
def stage(folder: Path | None, keep: bool) -> Generator[Stage]:
    """A fresh folder (or `folder`, which then stays) with everything that was started in it ended at the end."""
    for name in [name for name in os.environ if name.startswith(("JOBGATE_", "TEMPORAL_"))]:
        del os.environ[name]
    os.environ["SHOP_TOKEN"] = secrets.token_urlsafe(16)
    where = folder.expanduser().absolute() if folder is not None else Path(tempfile.mkdtemp(prefix="jobgate-demo-"))
    where.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        with asyncio.Runner() as runner:
            set_up = Stage(where, runner)
            try:
                yield set_up
            finally:
                # An impatient second Ctrl-C must not leave half of it behind; the waiting is bounded.
                for number in (signal.SIGINT, signal.SIGTERM):
                    signal.signal(number, signal.SIG_IGN)
                set_up.close()
    finally:
        if not keep and folder is None:
            shutil.rmtree(where, ignore_errors=True)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _interrupt(_number: int, _frame: object) -> NoReturn:
    raise KeyboardInterrupt
