"""The report of a run: its seed, what was done to whom, how much of everything was exercised, what is violated and how
that is proved, and what a green run does not prove.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tests.chaos.checker import names
from tests.chaos.facts import Facts, Violation
from tests.chaos.plan import Plan
from tests.chaos.trouble import Happened

NOT_PROVED = (
    "power loss: processes die here, the machine and its file system live on",
    "two machines: one clock, one network that loses nothing but what a dying process drops",
    "PostgreSQL, S3, a Temporal cluster: here are one SQLite file, a folder, a development server",
    "real models, MCP and python tools, callbacks, sessions, packets, artifacts, resets by an operator",
    "long lives: no job of this run rolls over, and retention deletes nothing",
    "anything between two moments at which nothing was killed: the plan is reproducible, the races are not",
)


@dataclass(frozen=True)
class Run:
    """One seed."""

    plan: Plan
    facts: Facts
    happened: tuple[Happened, ...]
    answers: Mapping[str, int]
    violations: tuple[Violation, ...]
    settled_s: float
    errors: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        return {
            "seed": self.plan.seed,
            "seconds": self.plan.seconds,
            "faults": [asdict(one) for one in self.happened],
            "counts": counts(self.facts, self.happened),
            "answers": dict(sorted(self.answers.items())),
            "settled_s": self.settled_s,
            "rules": names(),
            "violations": [asdict(one) for one in self.violations],
            "errors_logged": list(self.errors[:50]),
            "does_not_prove": NOT_PROVED,
        }


def counts(facts: Facts, happened: Iterable[Happened] = ()) -> dict[str, int]:
    """How much of each kind the run exercised; a zero is a kind that it says nothing about."""
    ends = Counter(job.view["status"] for job in facts.jobs if job.view)
    failures = Counter(job.view["failure"]["code"] for job in facts.jobs if job.view and job.view["failure"])
    events = Counter(event["type"] for job in facts.jobs for event in job.events)
    told = [told for job in facts.jobs for told in job.told]
    states = Counter(row.state for row in facts.effects)
    calls = Counter(call.effect for call in facts.calls)
    verdicts = Counter(one.wanted for one in facts.verdicts)
    sent = Counter(call.key for call in facts.calls if call.key)
    did = Counter(word for one in happened for word in ("killed", "frozen", "stopped", "ended") if word in one.what)
    return {
        "jobs accepted": sum(job.receipt is not None for job in facts.jobs),
        "submissions refused": sum(bool(job.told) and job.receipt is None for job in facts.jobs),
        "receipts replayed": sum(told.status == 200 for told in told),
        "retries accepted": sum(job.receipt is not None and bool(job.receipt["retry_of"]) for job in facts.jobs),
        **{f"jobs {status}": ends[status] for status in ("succeeded", "failed", "canceled", "waiting_for_human")},
        **{f"failed {code}": failures[code] for code in ("effect_unknown", "deadline_exceeded", "authority_revoked")},
        "reads called": calls["read"],
        "writes called": calls["write"],
        "idempotent writes called": calls["idempotent_write"],
        "idempotent writes sent again": sum(count > 1 for count in sent.values()),
        "attempts replaced": events["attempt.replaced"],
        "effects unknown": events["effect.unknown"],
        "effects found out": events["effect.reconciled"],
        **{f"effects at the end {state}": states[state] for state in ("confirmed", "failed", "reconciled", "unknown")},
        "approvals": verdicts["approve"],
        "rejections": verdicts["reject"],
        "answers": verdicts["answer"],
        "settlements": verdicts["settle"],
        "decisions refused": sum(one.status >= 400 for one in facts.verdicts),
        "cancels of open jobs": sum(one.status == 202 for one in facts.cancels),
        "cancels of ended jobs": sum(one.status == 200 for one in facts.cancels),
        "cancels that named something": sum(bool(one.in_flight) for one in facts.cancels),
        "revocations of apps": sum(not one.decides for one in facts.revocations),
        "revocations of people": sum(one.decides for one in facts.revocations),
        "streams watched": sum(one.how == "stream" for one in facts.watches),
        "streams resumed": sum(one.resumed for one in facts.watches),
        "polls watched": sum(one.how == "poll" for one in facts.watches),
        "reads in the quiet phase": facts.quiet.reads,
        "processes killed": did["killed"],
        "processes frozen": did["frozen"],
        "processes stopped": did["stopped"],
        "processes that ended by themselves": did["ended"],
    }


OPTIONAL = frozenset({"processes that ended by themselves", "submissions refused", "effects at the end unknown"})
"""Kinds of which there need be none."""


def text(run: Run) -> str:
    counted = counts(run.facts, run.happened)
    nothing = [name for name, count in counted.items() if not count and name not in OPTIONAL]
    again = f'make chaos ARGS="--seed {run.plan.seed} --seconds {run.plan.seconds:g}"'
    lines = [
        f"seed {run.plan.seed}, {run.plan.seconds:g} s of load, settled in {run.settled_s:g} s ({again})",
        f"  exercised: {', '.join(f'{count} {name}' for name, count in counted.items() if count)}",
        f"  not exercised, so not judged: {', '.join(nothing) or 'nothing of the list'}",
    ]
    if run.errors:
        lines.append(f"  {len(run.errors)} errors in the processes' logs, the first: {run.errors[0]}")
    for one in run.violations:
        lines += [f"  VIOLATED {one.rule}: {one.job}: {one.says}", *(f"      {fact}" for fact in one.proof)]
    if not run.violations:
        lines.append(f"  no violation of {len(names())} invariants")
    return "\n".join(lines)
