"""After the load: every key is asked for until it is known, every request is decided, and every job ends or waits.

Then a quiet phase: reads of every kind between two censuses of Temporal and the ledger.
"""

import asyncio
import sqlite3
import time
from collections.abc import Mapping
from contextlib import closing, suppress

import httpx2

from tests.chaos.facts import QuietFacts
from tests.chaos.load import Load
from tests.chaos.people import People
from tests.chaos.plan import PEOPLE, Plan
from tests.chaos.rules_jobs import TERMINAL
from tests.chaos.speaking import Record, Speaker
from tests.chaos.stories import FINANCE, PARKED
from tests.rig.stack import Stack

LONGEST_S, LONGEST_OF_A_MUTANT_S = 120.0, 30.0
STILL_S = 2.5
"""So long nothing may have changed before the quiet phase begins: longer than a sweep."""
OWN_ROWS = frozenset({"processes", "alembic_version", "sqlite_sequence"})
"""Tables that live by themselves: every process writes there that it is alive."""
MAY_CHANGE = ("decisions", "effects", "packets", "stops", "votes")
"""Tables whose rows themselves are compared, not only counted."""
SAMPLE = 25


async def settle(
    plan: Plan, load: Load, people: People, record: Record, reader: Speaker, stack: Stack, at_most_s: float
) -> float:
    """Returns when all is ended or waits, or `at_most_s` later; seconds it took."""
    began = time.monotonic()
    decider = Speaker(stack, record, PEOPLE[0], groups=(FINANCE,))
    second = Speaker(stack, record, PEOPLE[1], groups=(FINANCE,))
    await _resolve(plan, load, record)
    parked = {job.key for job in plan.jobs if job.story == PARKED}
    left = {key for key in [*record.told, *record.retries.values()] if record.accepted(key)} - parked
    while left and time.monotonic() - began < at_most_s:
        for who in (decider, second):
            await people.decide_some(who, everything=True)
        for key in sorted(left):
            view = await reader.status(key)
            if view is not None:
                record.seen[key]["settling"].append(view["status"])
                left -= {key} if view["status"] in TERMINAL else set()
        await asyncio.sleep(0.5)
    return round(time.monotonic() - began, 1)


async def _resolve(plan: Plan, load: Load, record: Record) -> None:
    """A key whose submission was never answered is asked for again: now it is known what became of it."""
    unknown = [load.submit(job, job.api) for job in plan.jobs if not record.accepted(job.key)]
    untold = [job for job in plan.jobs if job.key in record.retries and not record.told[record.retries[job.key]]]
    await asyncio.gather(*unknown, *(load.retry(job) for job in untold))


def census(ledger: str, runs: Mapping[str, int]) -> dict[str, int | str]:
    """Rows of each table and the length of each history; of tables that may change in place, a digest of the rows."""
    found: dict[str, int | str] = {f"history of {run}": length for run, length in runs.items()}
    with closing(sqlite3.connect(f"file:{ledger}?mode=ro", uri=True)) as db:
        names = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for name in sorted(set(names) - OWN_ROWS):
            found[f"rows of {name}"] = db.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0]
        for name in MAY_CHANGE:
            found[f"content of {name}"] = str(hash(tuple(db.execute(f'SELECT * FROM "{name}" ORDER BY 1, 2, 3, 4'))))
    return found


async def histories(stack: Stack) -> dict[str, int]:
    """The length of each run's history, by workflow and run, as the engine counts it now."""
    engine = await stack.engine()
    found: dict[str, int] = {}
    async for listed in engine.list_workflows():
        handle = engine.get_workflow_handle(listed.id, run_id=listed.run_id)
        found[f"{listed.id} {listed.run_id}"] = (await handle.describe()).history_length
    return found


async def be_quiet(stack: Stack, record: Record, reader: Speaker, seconds: float) -> QuietFacts:
    """Waits until nothing changes by itself, then reads for so long, everything that can be read."""
    ledger = str(stack.data / "ledger.db")

    async def count() -> dict[str, int | str]:
        return census(ledger, await histories(stack))

    before = await count()
    for _ in range(10):
        await asyncio.sleep(STILL_S)
        now = await count()
        if now == before:
            break
        before = now
    keys = [key for key in record.told if record.accepted(key)]
    reads = await _read(reader, record, keys[:SAMPLE] + keys[-SAMPLE:], time.monotonic() + seconds)
    await asyncio.sleep(STILL_S)
    return QuietFacts(before, await count(), reads)


async def _read(reader: Speaker, record: Record, keys: list[str], ends: float) -> int:
    reads = 0
    while time.monotonic() < ends and keys:
        for key in keys:
            for path in (f"/v1/jobs/{key}", f"/v1/jobs/{key}?after=0&limit=500", f"/v1/jobs/{key}/preview"):
                await reader.ask("quiet read", "GET", path, api=reads)
                reads += 1
            with suppress(httpx2.HTTPError):
                async with reader.client(reads).http.stream("GET", f"/v1/jobs/{key}/events", timeout=3) as stream:
                    await anext(stream.aiter_bytes(), b"")
            reads += 1
            if time.monotonic() > ends:
                break
        for path in ("/v1/jobs", "/v1/requests?state=pending", "/readyz", "/v1/usage", "/v1/openapi.json"):
            await reader.ask("quiet read", "GET", path, api=reads)
            reads += 1
    return reads
