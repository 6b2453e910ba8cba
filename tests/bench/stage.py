"""What every part of the bench stands on: a fresh stack of real processes, rounds in turn, and lines about progress."""

import asyncio
import gc
import itertools
import os
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from tests.bench.figures import Round
from tests.rig.client import Json
from tests.rig.plugins import call, final, publish_plugin, tool, turn
from tests.rig.stack import Stack

T = TypeVar("T")

Measure = Callable[[], Awaitable[float]]


@dataclass(frozen=True, slots=True)
class Bench:
    """`rounds` of each measurement; `scale` shrinks the sizes of a quick look."""

    rounds: int
    scale: float = 1.0

    def size(self, full: int) -> int:
        return max(round(full * self.scale), 10)

    def say(self, text: str) -> None:
        sys.stderr.write(f"  {text}\n")
        sys.stderr.flush()

    @asynccontextmanager
    async def stack(self, *, apis: int = 1, workers: int = 0) -> AsyncGenerator[Stack]:
        """A stack of this part's own on a throw-away folder, so that no part slows another by what it left."""
        with TemporaryDirectory(prefix="jobgate-bench-", ignore_cleanup_errors=True) as folder:
            stack = Stack(Path(folder))
            try:
                await stack.start(apis=apis, workers=workers)
                yield stack
            finally:
                await stack.close()

    async def in_turn(self, what: str, unit: str, ours: Measure, bare: Measure) -> tuple[Round, ...]:
        """All rounds; who goes first changes from round to round."""
        found: list[Round] = []
        for number in range(self.rounds):
            first, second = (ours, bare) if number % 2 == 0 else (bare, ours)
            gc.collect()
            one, other = await first(), await second()
            mine, theirs = (one, other) if first is ours else (other, one)
            found.append(Round(mine, theirs))
            self.say(f"{what}: round {number + 1} of {self.rounds}: ours {mine:.1f}, bare {theirs:.1f} {unit}")
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Burst:
    """What `count` calls came to. Units: seconds and milliseconds."""

    seconds: float
    latencies_ms: tuple[float, ...]

    @property
    def per_second(self) -> float:
        return len(self.latencies_ms) / self.seconds


async def burst(ones: Sequence[Callable[[], Awaitable[object]]], count: int) -> Burst:
    """`count` calls, shared by as many callers as there are `ones`; each begins its next when its last is answered."""
    numbers = iter(range(count))
    latencies: list[float] = []

    async def work(one: Callable[[], Awaitable[object]]) -> None:
        for _ in numbers:
            began = time.perf_counter()
            await one()
            latencies.append((time.perf_counter() - began) * 1000)

    began = time.perf_counter()
    await asyncio.gather(*(work(one) for one in ones))
    return Burst(time.perf_counter() - began, tuple(latencies))


def cpu_ms(pids: Sequence[int]) -> float:
    """What these processes have computed so far: unlike a rate, it hardly depends on who else uses the machine."""
    tick = os.sysconf("SC_CLK_TCK")
    fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(int(one[11]) + int(one[12]) for one in fields) / tick * 1000


_numbers = itertools.count(1)


def fresh(word: str) -> str:
    """A key or workflow id that nothing else of this run uses."""
    return f"{word}-{next(_numbers)}"


READ = "notes.read"
WRITE = "notes.write"
THREE_STEPS = (turn(call(READ, {"id": "{{ input.id }}"}), say="Reading."), final({"message": "Read."}))
"""The job that is measured most: model step, read tool, model step."""
INPUT: Json = {"id": "n-17"}


async def publish_three_steps(stack: Stack, name: str = "three-steps") -> str:
    await publish_plugin(stack.client("operator"), name, THREE_STEPS, tools=[tool(READ)], tools_url=stack.effects.url)
    return name


async def publish_asking(stack: Stack, name: str = "asking") -> str:
    """A job that asks a person before its only write."""
    asks = 'permit (principal, action == Action::"call", resource);\n'
    script = (turn(call(WRITE, {"id": "{{ input.id }}"}), say="Asking."), final({"message": "Written."}))
    await publish_plugin(
        stack.client("operator"),
        name,
        script,
        tools=[tool(WRITE, "write")],
        tools_url=stack.effects.url,
        policy=asks,
    )
    return name
