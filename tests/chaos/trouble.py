"""Trouble: kills, freezes and stops processes of the stack as planned, and is the one who starts them again.

Like an init system it restarts whatever ended, also of itself; what happened, and when, is its log.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.chaos.plan import Fault
from tests.rig.process import Process
from tests.rig.stack import Stack

LOOK_EVERY_S = 0.25
STOP_S = 30.0
COMES_UP_S = 180.0


@dataclass(frozen=True)
class Happened:
    """`at_s` as it really was; `what` says what was done, or why nothing."""

    at_s: float
    target: str
    what: str


@dataclass
class Trouble:
    stack: Stack
    log: list[Happened] = field(default_factory=list[Happened])
    slow_stops: int = 0
    _held: set[str] = field(default_factory=set[str])
    _began: float = 0.0

    @property
    def processes(self) -> dict[str, Process]:
        named = {f"api-{n}": api for n, api in enumerate(self.stack.apis)}
        named |= {f"worker-{n}": worker for n, worker in enumerate(self.stack.workers)}
        return {**named, "temporal": self.stack.temporal}

    async def run(self, plan: tuple[Fault, ...], say: Callable[[str], None]) -> None:
        """Does what is planned, each fault on its own; returns when all of it is over."""
        loop = asyncio.get_running_loop()
        self._began = loop.time()
        async with asyncio.TaskGroup() as group:
            for fault in plan:
                await asyncio.sleep(max(self._began + fault.at_s - loop.time(), 0))
                group.create_task(self._do(fault, say))

    async def watch(self) -> None:
        """Goes on until it is canceled: what has ended and is not held down is started again."""
        self._began = self._began or asyncio.get_running_loop().time()
        while True:
            for name, process in self.processes.items():
                if not process.running and name not in self._held:
                    self._note(name, f"ended with {process.exit_code}; started again")
                    process.start()
            await asyncio.sleep(LOOK_EVERY_S)

    async def heal(self, at_most_s: float = COMES_UP_S) -> None:
        """Everything runs, serves and polls again; `watch` has to go on. Raises AssertionError where it does not."""
        for process in self.processes.values():
            if process.running:
                process.resume()
        ends = time.monotonic() + at_most_s
        while True:
            try:
                await stack_is_up(self.stack)
                return
            except AssertionError:
                if time.monotonic() > ends:
                    raise
                await asyncio.sleep(LOOK_EVERY_S)

    async def _do(self, fault: Fault, say: Callable[[str], None]) -> None:
        process = self.processes[fault.target]
        if fault.target in self._held or not process.running:
            self._note(fault.target, f"no {fault.how}: it was down already")
            return
        self._held.add(fault.target)
        try:
            await self._hold(fault, process, say)
        finally:
            self._held.discard(fault.target)

    async def _hold(self, fault: Fault, process: Process, say: Callable[[str], None]) -> None:
        match fault.how:
            case "kill":
                process.kill()
                self._note(fault.target, f"killed, down for {fault.for_s} s")
            case "freeze":
                process.freeze()
                self._note(fault.target, f"frozen for {fault.for_s} s")
            case "stop":
                self._note(fault.target, f"{await self._stop(process)}, down for {fault.for_s} s")
        say(f"{self.log[-1].at_s:6.1f} s  {fault.target:9} {self.log[-1].what}")
        await asyncio.sleep(fault.for_s)
        if fault.how == "freeze":
            process.resume()
        elif not process.running:
            process.start()

    async def _stop(self, process: Process) -> str:
        try:
            return f"stopped by SIGTERM (exit {await asyncio.to_thread(process.stop, STOP_S)})"
        except AssertionError:
            self.slow_stops += 1
            return f"did not end within {STOP_S:.0f} s of SIGTERM and was killed"

    def _note(self, target: str, what: str) -> None:
        self.log.append(Happened(round(asyncio.get_running_loop().time() - self._began, 2), target, what))


async def stack_is_up(stack: Stack) -> None:
    """Every API serves and every worker polls. Raises AssertionError where one ended, or not in time."""
    await asyncio.gather(
        *(stack.until_ready(api, COMES_UP_S) for api in stack.apis),
        *(stack.until_polling(worker, COMES_UP_S) for worker in stack.workers),
    )
