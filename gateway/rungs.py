"""The six rungs of readiness: what each one proves and does not prove, and whether it is reached by what was seen.

Pure. Each rung is judged by its own evidence and never by another rung; what can not be known is not reached, and says
so. A phase is no evidence: break-glass may stand above rungs that were never climbed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Literal, NamedTuple

from gateway.ages import age
from gateway.climbing import OnRecord, Succeeded
from gateway.ledger.presence import NewProcess, ProcessRow
from gateway.workers import POLLED_WITHIN, Queue, last_word, workers_of
from workflows.policy.promotion import SMOKE_IS_FRESH_FOR

RungName = Literal["configured", "loaded", "callable", "blocked_noop", "stateful_noop", "live_canary"]


class Meaning(NamedTuple):
    proves: str
    runtime: str
    """The same rung of the runtime."""
    does_not_prove: str


MEANINGS: Mapping[RungName, Meaning] = MappingProxyType(
    {
        "configured": Meaning(
            "The published files are what their digest says, a deployment fits them, a release is set, and every "
            "credential reference is allowed.",
            "Namespace and search attributes of the engine, the ledger's schema and the lanes are as this build needs.",
            "That a process has loaded it, that a credential has a value, or that a service answers.",
        ),
        "loaded": Meaning(
            "A live worker of this API's build and configuration serves the lane that its tools need, and has the "
            "Python tools.",
            "A live worker has this API's build and configuration.",
            "That the worker asks for work, or that a tool can be called.",
        ),
        "callable": Meaning(
            "A live worker asked for work of every kind that its jobs need, not long ago.",
            "A live worker asked for jobs and for steps of the lane that jobs start on, not long ago.",
            "That a slot is free or that a job gets anywhere: a worker that is stuck looks the same for a while.",
        ),
        "blocked_noop": Meaning(
            "The last smoke of this digest read and was refused everywhere, and changed nothing.",
            "The last smoke of the runtime read and was refused everywhere, and changed nothing.",
            "That anything can run: a smoke starts no job.",
        ),
        "stateful_noop": Meaning(
            "A dry run of this digest was admitted, planned by a worker, and ended well.",
            "A dry run of some plugin of this workspace was admitted, planned by a worker, and ended well.",
            "That a model or a tool answers: a dry run calls none.",
        ),
        "live_canary": Meaning(
            "One held job of this digest ran by a packet, with tools that only read, and succeeded.",
            "One held job of some plugin of this workspace ran by a packet, with tools that only read, and succeeded.",
            "That a write does what people mean by it, or that many jobs at once succeed.",
        ),
    }
)


@dataclass(frozen=True, slots=True)
class Rung:
    """`evidence`: what was seen, and where the rung is not reached what to do; `observed_at`: when that was seen."""

    rung: RungName
    reached: bool
    evidence: str
    observed_at: datetime | None


@dataclass(frozen=True, slots=True)
class Needed:
    """Of a worker: the lane that tool calls go to (None: no lane fits), and the Python tools. The runtime needs any."""

    lane: str | None
    tools: frozenset[str] = frozenset()
    any_lane: bool = False


def loaded(me: NewProcess, rows: Sequence[ProcessRow], needed: Needed, now: datetime) -> Rung:
    """A worker that lacks something is named with what it lacks."""
    live = workers_of(rows, now)
    if needed.lane is None and not needed.any_lane:
        return Rung("loaded", False, "No lane has the capabilities that the plugin requires.", now)
    lacking = {row.identity: _lacking(me, row, needed) for row in live}
    fit = [row for row in live if not lacking[row.identity]]
    if fit:
        best = max(fit, key=lambda row: row.seen_at)
        more = f", and {len(fit) - 1} more" if len(fit) > 1 else ""
        evidence = f"{best.identity} of lane {best.lane} lives{more}; build {best.build}."
        return Rung("loaded", True, evidence, best.seen_at)
    if not live:
        return Rung("loaded", False, f"No live worker; {last_word(rows, now)}. Start one: jobgate worker.", now)
    listed = "; ".join(f"{who} {what}" for who, what in sorted(lacking.items())[:3])
    return Rung("loaded", False, f"{len(live)} live, but none that fits: {listed}.", now)


def _lacking(me: NewProcess, row: ProcessRow, needed: Needed) -> str:
    if row.build != me.build:
        return f"runs another build ({row.build}, the API {me.build})"
    if row.config != me.config:
        return "runs with another configuration than the API"
    if not needed.any_lane and row.lane != needed.lane:
        return f"serves lane {row.lane}, not {needed.lane}"
    if missing := sorted(needed.tools - set(row.tools)):
        return f"has no Python tool {', '.join(missing)}"
    return ""


def callable_(asked: Mapping[Queue, datetime | None] | None, now: datetime) -> Rung:
    """`asked`: of every queue that jobs need, when a live worker asked last; None: nobody could tell."""
    if asked is None:
        return Rung("callable", False, "Not known: the workflow engine does not answer.", None)
    silent = [queue for queue, at in asked.items() if at is None]
    if silent or not asked:
        wanting = "; ".join(f"lane {queue.lane}, {queue.kind} tasks" for queue in silent) or "no lane fits"
        said = f"No live worker asked within {age(POLLED_WITHIN)}: {wanting}. Accepted jobs wait."
        return Rung("callable", False, said, now)
    at = min(at for at in asked.values() if at is not None)
    lanes = ", ".join(dict.fromkeys(queue.lane for queue in asked))
    return Rung("callable", True, f"Live workers of lane {lanes} asked for work {age(now - at)} ago.", at)


def blocked_noop(seen: OnRecord, now: datetime, smoke: str) -> Rung:
    """`smoke`: the command that makes the evidence."""
    row = seen.smoke
    if row is None:
        return Rung("blocked_noop", False, f"Never smoked: {smoke}.", None)
    if not row.green:
        return Rung("blocked_noop", False, f"The last smoke was not green, {age(now - row.at)} ago: {smoke}.", row.at)
    fresh = now - row.at <= SMOKE_IS_FRESH_FOR
    valid = "fresh enough for a promotion" if fresh else "too old for a promotion, which asks for one within the hour"
    return Rung("blocked_noop", True, f"A green smoke, {age(now - row.at)} ago: {valid}.", row.at)


def stateful_noop(seen: OnRecord, dry_run: Succeeded | None, now: datetime, *, known: bool) -> Rung:
    row = seen.simulation
    if row is None:
        simulated = "Never simulated."
    elif row.green:
        simulated = f"A simulation {age(now - row.at)} ago found a lane that fits."
    else:
        simulated = f"The last simulation, {age(now - row.at)} ago, found no lane that fits."
    if not known:
        return Rung("stateful_noop", False, f"Not known: the workflow engine does not answer. {simulated}", None)
    if dry_run is None:
        tried = f"None of {len(seen.dry_runs)} dry runs succeeded" if seen.dry_runs else "No dry run"
        return Rung("stateful_noop", False, f"{tried}: jobgate submit PLUGIN --mode dry_run. {simulated}", None)
    said = f"Dry run {dry_run.job_id} succeeded {age(now - dry_run.at)} ago. {simulated}"
    return Rung("stateful_noop", True, said, dry_run.at)


def live_canary(seen: OnRecord, packet: Succeeded | None, now: datetime, *, known: bool) -> Rung:
    if not seen.packets:
        return Rung("live_canary", False, "No packet was redeemed: jobgate packet create JOB.", None)
    if not known:
        return Rung("live_canary", False, "Not known: the workflow engine does not answer.", None)
    if packet is None:
        tried = len(seen.packets)
        return Rung("live_canary", False, f"{tried} redeemed, and none of the jobs succeeded: inconclusive.", None)
    said = f"Job {packet.job_id} ran by a packet and succeeded {age(now - packet.at)} ago."
    return Rung("live_canary", True, said, packet.at)
