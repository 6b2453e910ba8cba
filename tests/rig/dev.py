"""One `jobgate dev` as a process of a test, and what else runs on its folder."""

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import httpx2

from gateway.settings import DevFile, read_dev_file
from tests.rig.overheard import Overhearing
from tests.rig.process import Process, outside_environment
from tests.rig.waiting import wait_until

JOBGATE = Path(sys.executable).with_name("jobgate")
ANY_PORT = ("--api-port", "0", "--temporal-port", "0", "--ui-port", "0")
TOOL_TOKEN = "canary-tool-7f3e1c"


class Dev(Process):
    """One `jobgate dev` and what else runs on its folder."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.data = folder / "data"
        arguments = ["dev", "--data", str(self.data), *(options or ANY_PORT)]
        super().__init__("dev", arguments, folder, program=JOBGATE, environment={"TOOL_TOKEN": TOOL_TOKEN})
        self.replacements: list[Process] = []
        self.folder = folder

    async def up(self) -> DevFile:
        """Starts it; what its dev.json says, once it is there."""
        before = read_dev_file(self.data)
        self.start()

        def written() -> DevFile | None:
            assert self.running, self.output
            now = read_dev_file(self.data)
            return now if now != before else None

        return await wait_until(written, 120, what="dev.json")

    def replace(self, name: str) -> Process:
        process = Process(f"new-{name}", [name, "--data", str(self.data)], self.folder, program=JOBGATE)
        self.replacements.append(process)
        process.start()
        return process

    async def says(self, *words: str) -> str:
        """The line of its output that holds all the words."""

        def found() -> str | None:
            lines = self.output.splitlines()
            return next((line for line in lines if all(word in line for word in words)), None)

        return await wait_until(found, 20, what=f"dev says {words}")

    def left_behind(self) -> list[int]:
        """Every process that works on the data folder, other than what the test itself started."""
        own = {process.pid for process in self.replacements}
        return [pid for pid in processes_on(self.data) if pid not in own]

    def close(self) -> None:
        for process in (*self.replacements, self):
            process.kill()

    def token(self, principal: str) -> str:
        asked = [str(JOBGATE), "token", principal, "--data", str(self.data)]
        return subprocess.run(
            asked, env=outside_environment(), capture_output=True, text=True, check=True
        ).stdout.strip()


def processes_on(data: Path) -> list[int]:
    """Running processes that were told this folder, by environment or argument; zombies have neither."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with suppress(OSError):
                told = (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes()
                if os.fsencode(data) in told:
                    found.append(int(entry.name))
    return found


def command_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")


async def ready(url: str) -> bool:
    async with httpx2.AsyncClient(timeout=5, transport=Overhearing()) as http:
        try:
            return (await http.get(f"{url}/readyz")).status_code == 200
        except httpx2.HTTPError:
            return False


def running(dev: Dev) -> DevFile:
    found = read_dev_file(dev.data)
    assert found is not None
    return found
