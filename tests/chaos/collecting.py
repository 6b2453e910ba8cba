"""Facts of a run, gathered when it is over: from the effect log, by HTTP, from the ledger (read only) and Temporal."""

import json
import sqlite3
from collections.abc import AsyncIterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.chaos.facts import (
    CallFacts,
    DecisionFacts,
    EffectFacts,
    Facts,
    JobFacts,
    Json,
    OddAnswer,
    QuietFacts,
    RunFacts,
)
from tests.chaos.plan import Plan, app_name
from tests.chaos.speaking import Record, Speaker
from tests.chaos.stories import EFFECTS, REFUSING, STORIES
from tests.rig.effect_log import Call
from tests.rig.overheard import EAR
from tests.rig.stack import Stack


async def collect(stack: Stack, plan: Plan, record: Record, reader: Speaker, quiet: QuietFacts) -> Facts:
    calls = [_call(one) for one in stack.effects.calls()]
    with closing(sqlite3.connect(f"file:{stack.data / 'ledger.db'}?mode=ro", uri=True)) as ledger:
        ledger.row_factory = sqlite3.Row
        effects = tuple(_effect(row) for row in ledger.execute("SELECT * FROM effects"))
        decisions = tuple(_decision(row) for row in ledger.execute("SELECT * FROM decisions"))
    jobs = [await _job(record, reader, key, story, app) for key, (story, app) in _keys(plan, record).items()]
    leaks = tuple(OddAnswer("a leak", 0, f"{says} (x{count})") for says, count in EAR.taken().items())
    return Facts(
        jobs=tuple(jobs),
        calls=tuple(calls),
        cancels=tuple(record.cancels),
        verdicts=tuple(record.verdicts),
        revocations=tuple(record.revocations),
        watches=tuple(record.watches),
        effects=effects,
        decisions=decisions,
        runs=tuple([run async for run in _runs(stack)]),
        quiet=quiet,
        refusing=frozenset(call.number for call in calls if call.tool in REFUSING),
        odd=(*record.odd, *leaks),
    )


def _keys(plan: Plan, record: Record) -> Mapping[str, tuple[str, int]]:
    found = {job.key: (job.story, job.app) for job in plan.jobs}
    retried = {record.retries[job.key]: (job.story, job.app) for job in plan.jobs if job.key in record.retries}
    return {**found, **retried}


async def _job(record: Record, reader: Speaker, key: str, story: str, app: int) -> JobFacts:
    view: Json | None = None
    events: list[Json] = []
    if record.accepted(key):
        view = await reader.status(key, 1)
        events = await _events(reader, key)
    return JobFacts(
        key=key,
        plugin=story,
        principal=app_name(app),
        asks=STORIES[story].asks,
        told=tuple(record.told[key]),
        view=view,
        events=tuple(events),
        seen=tuple(tuple(one) for one in record.seen[key].values()),
    )


async def _events(reader: Speaker, key: str) -> list[Json]:
    found: list[Json] = []
    cursor = "0"
    while True:
        reply = await reader.insist("events", "GET", f"/v1/jobs/{key}?after={cursor}&limit=500", at_most_s=15)
        if reply is None or reply.status != 200:
            return found
        page = reply.json
        found += page["events"]
        if not page["has_more"] or not page["events"]:
            return found
        cursor = page["next_cursor"]


def _call(one: Call) -> CallFacts:
    return CallFacts(
        number=one.number,
        at_ns=one.monotonic_ns,
        at_wall_ns=one.wall_ns,
        tool=one.tool,
        effect=EFFECTS[one.tool],
        body=one.body.decode() or one.query,
        job=one.job or "",
        key=one.idempotency_key,
        epoch=one.epoch,
    )


def _effect(row: sqlite3.Row) -> EffectFacts:
    return EffectFacts(
        effect_id=row["effect_id"],
        job=row["job_id"],
        tool=row["tool"],
        effect=row["effect"],
        state=row["state"],
        epoch=row["epoch"],
        action_digest=row["action_digest"],
        request=row["request_id"],
    )


def _decision(row: sqlite3.Row) -> DecisionFacts:
    shown: dict[str, Any] = json.loads(row["shown"] or "{}")
    return DecisionFacts(
        job=row["job_id"],
        request=row["request_id"],
        decision=row["decision"],
        action_digest=row["action_digest"],
        decided_by=tuple(json.loads(row["decided_by"])),
        at_wall_ns=row["decided_at"] * 1000,  # the ledger counts microseconds
        answer=None if row["answer"] is None else json.loads(row["answer"]),
        effect_id=shown.get("effect_id") if shown.get("kind") == "reconciliation" else None,
    )


async def _runs(stack: Stack) -> AsyncIterator[RunFacts]:
    engine = await stack.engine()
    async for listed in engine.list_workflows():
        workspace, _, job = listed.id.partition(".")
        if workspace == "demo" and job:
            status = "RUNNING" if listed.status is None else listed.status.name
            first = listed.raw_info.first_run_id or listed.run_id
            yield RunFacts(job, listed.run_id, first, status)


def trail(folder: Path) -> list[str]:
    """Lines of the processes' logs that say error."""
    found: list[str] = []
    for log in sorted(folder.glob("*.log")):
        lines = log.read_text(errors="replace").splitlines()
        found += [
            f"{log.name}: {line[:400]}" for line in lines if '"level": "error"' in line or '"level":"error"' in line
        ]
    return found
