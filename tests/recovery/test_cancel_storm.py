"""A hundred cancels at any moment of a job of fifty writes (two hundred, `-m slow`): all hold; the effect log says so.

The judge is the order of two readings of one clock: when the answer to cancel was read, and when the first byte of each
write arrived. A worker that does not hear a cancel turns it red.
"""

import asyncio
import random
import re
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from tests.recovery.grounds import published, running_stack
from tests.rig.client import Client, Json, fresh_key
from tests.rig.effect_log import Answer, Behaviour, Call
from tests.rig.plugins import call, final, tool, turn
from tests.rig.process import Process
from tests.rig.stack import Stack

AT_ONCE = 20
WRITES, WRITE_S = 50, 0.08
PER_TURN = 5
METRIC = re.compile(r"^jobgate_write_after_cancel_total (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Canceled:
    """One cancel of one job: both answers, and when the first was asked for and read (monotonic, nanoseconds)."""

    job: str
    asked_ns: int
    answered_ns: int
    answer: Json
    second: Json


def unnamed(one: Canceled, calls: Sequence[Call], answered_ns: int | None = None) -> list[Call]:
    """The writes of the job that started after the answer and that it did not name."""
    named = {effect["effect_id"] for effect in one.answer["in_flight"]}
    after = one.answered_ns if answered_ns is None else answered_ns
    return [sent for sent in calls if sent.monotonic_ns > after and sent.idempotency_key not in named]


class Tally:
    """How many writes of each job have arrived: one reader of the effect log's own file as it grows."""

    def __init__(self, stack: Stack) -> None:
        self._file = stack.folder / "effects" / "effects.sqlite"
        self._arrived: Counter[str] = Counter()
        self._grown = asyncio.Event()

    async def reached(self, job: str, count: int) -> None:
        while self._arrived[job] < count:
            await self._grown.wait()

    async def read(self) -> None:
        """Goes on until it is canceled."""
        last = 0
        with closing(sqlite3.connect(self._file)) as log:
            while True:
                rows = log.execute(
                    "SELECT number, json_extract(pair.value, '$[1]') FROM calls, json_each(headers) AS pair"
                    " WHERE number > ? AND json_extract(pair.value, '$[0]') = 'jobgate-job' ORDER BY number",
                    (last,),
                ).fetchall()
                for number, job in rows:
                    last = number
                    self._arrived[job] += 1
                self._grown.set()
                self._grown = asyncio.Event()
                await asyncio.sleep(0.02)


def counting_worker(stack: Stack, *options: str) -> tuple[Process, Path]:
    """A worker and the file in which it leaves its metrics when it ends."""
    metrics = stack.folder / f"metrics-{len(stack.workers)}.txt"
    arguments = ["-m", "tests.recovery.counting_worker", "--metrics", str(metrics), *options]
    worker = Process(f"worker-{len(stack.workers)}", arguments, stack.folder, environment=stack.environment)
    stack.workers.append(worker)
    worker.start()
    return worker, metrics


def writes_after_cancel(metrics: str) -> float:
    [value] = METRIC.findall(metrics)
    return float(value)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def ground(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Stack]:
    async with running_stack(tmp_path_factory.mktemp("storm"), workers=0) as stack:
        yield stack


async def fifty_writes(stack: Stack) -> str:
    """A plugin whose job writes fifty times, 80 ms each; one write in two may be sent again after a lost answer."""
    for name in ("save", "keep"):
        stack.effects.set_behaviour(name, Behaviour(delay_seconds=WRITE_S))
    calls = [call("save" if n % 2 else "keep", {"n": n}) for n in range(WRITES)]
    turns = [turn(*calls[at : at + PER_TURN]) for at in range(0, WRITES, PER_TURN)]
    tools = [tool("save", "write"), tool("keep", "idempotent_write")]
    return await published(stack, [*turns, final(delay_seconds=1)], *tools, max_steps=2 * WRITES)


async def cancel_at(app: Client, tally: Tally, plugin: str, moment: float) -> Canceled:
    """Cancel when so many writes have begun (the fraction is of the 80 ms that the last one takes), then once more."""
    job = await app.accepted(plugin, key=fresh_key())
    try:
        async with asyncio.timeout(120):
            await tally.reached(job, int(moment))
    except TimeoutError:
        raise AssertionError(f"{int(moment)} writes did not arrive: {await app.status(job)}") from None
    await asyncio.sleep(moment % 1 * WRITE_S)
    asked_ns = time.monotonic_ns()
    first = await app.cancel(job)
    answered_ns = time.monotonic_ns()
    second = await app.cancel(job)
    assert first.status_code == 202, first.text
    assert second.status_code in (200, 202), second.text
    return Canceled(job, asked_ns, answered_ns, first.json(), second.json())


async def storm(stack: Stack, moments: Sequence[float]) -> list[Canceled]:
    plugin, app, tally = await fifty_writes(stack), stack.client(), Tally(stack)
    at_once = asyncio.Semaphore(AT_ONCE)
    reading = asyncio.create_task(tally.read())

    async def one(moment: float) -> Canceled:
        async with at_once:
            return await cancel_at(app, tally, plugin, moment)

    try:
        return list(await asyncio.gather(*map(one, moments)))
    finally:
        reading.cancel()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("cancels", [100, pytest.param(200, marks=pytest.mark.slow)])
async def test_after_the_answer_to_cancel_no_write_starts_but_those_it_named(ground: Stack, cancels: int) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    sys.stdout.write(f"seed {seed}\n")
    moments = random.Random(seed)
    worker, metrics = counting_worker(ground)
    await ground.until_polling(worker)
    done = await storm(ground, [moments.uniform(0, WRITES) for _ in range(cancels)])
    app = ground.client()
    ends = [await app.until_ended(one.job, 60) for one in done]
    assert Counter(end["status"] for end in ends) == {"canceled": cancels}

    calls: dict[str | None, list[Call]] = {one.job: [] for one in done}
    for sent in ground.effects.calls():
        calls[sent.job].append(sent)
    assert [sent for one in done for sent in unnamed(one, calls[one.job])] == []
    for one, end in zip(done, ends, strict=True):
        assert one.answer["cancel_requested_at"] is not None
        assert one.second["cancel_requested_at"] == one.answer["cancel_requested_at"] == end["cancel_requested_at"]
        assert len({sent.idempotency_key for sent in calls[one.job]}) == len(calls[one.job])

    # The same judge with the answers dated half a second before they were asked for: it does see what came after.
    assert any(unnamed(one, calls[one.job], one.asked_ns - 500_000_000) for one in done)

    assert worker.stop() == 0
    assert writes_after_cancel(metrics.read_text()) == 0
    text = (await ground.client("operator").http.get("/metrics")).text
    assert writes_after_cancel(text) == 0
    report(done, calls)


def report(done: Sequence[Canceled], calls: dict[str | None, list[Call]]) -> None:
    """What was measured, for whoever runs this with `-s`."""
    took = sorted((one.answered_ns - one.asked_ns) / 1e6 for one in done)
    named = sum(bool(one.answer["in_flight"]) for one in done)
    busy = sum(any(0 < one.asked_ns - sent.monotonic_ns < WRITE_S * 1e9 for sent in calls[one.job]) for one in done)
    sys.stdout.write(
        f"{len(done)} cancels, {busy} during a write, {named} named something in flight,"
        f" answered in {took[len(took) // 2]:.0f} ms at the median and {took[-1]:.0f} ms at most,"
        f" {sum(map(len, calls.values()))} writes in all\n"
    )


async def test_the_judge_and_the_metric_see_a_worker_that_does_not_hear(ground: Stack) -> None:
    deaf, metrics = counting_worker(ground, "--deaf")
    await ground.until_polling(deaf)
    done = await storm(ground, [10.5, 20.5, 30.5])
    app = ground.client()
    for one in done:
        await app.until_ended(one.job, 60)
        assert unnamed(one, ground.effects.calls(job=one.job)), "a deaf worker passed for one that hears"
    assert deaf.stop() == 0
    assert writes_after_cancel(metrics.read_text()) > 0


async def test_the_answer_names_a_write_that_outlasts_it_and_the_job_awaits_it(ground: Stack) -> None:
    worker, metrics = counting_worker(ground)
    await ground.until_polling(worker)
    ground.effects.set_behaviour("slow", Behaviour(answer=Answer.HOLD))
    plugin = await published(
        ground, [turn(call("slow", {"n": 1}), call("slow", {"n": 2})), final()], tool("slow", "write")
    )
    app = ground.client()
    job = await app.accepted(plugin)
    [sent] = await ground.effects.wait_for_calls("slow", job=job)
    first = (await app.cancel(job)).json()
    assert [(one["effect_id"], one["tool"]) for one in first["in_flight"]] == [(sent.idempotency_key, "slow")]
    assert (first["status"], first["finished_at"]) == ("canceling", None)
    again = [(await app.cancel(job)).json() for _ in range(3)]
    assert again == [first] * 3
    view = await app.until_status(job, "canceling")
    assert view["cancel_requested_at"] == first["cancel_requested_at"]
    ground.effects.release("slow")
    end = await app.until_ended(job)
    assert (end["status"], end["executed"], end["cancel_requested_at"]) == (
        "canceled",
        "yes",
        first["cancel_requested_at"],
    )
    assert ground.effects.calls("slow") == [sent]
    assert (await app.event_types(job))[-3:] == ["cancel.requested", "tool.finished", "job.canceled"]
    assert worker.stop() == 0
    assert writes_after_cancel(metrics.read_text()) == 0
