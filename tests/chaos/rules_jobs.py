"""What clients may be told: each rule reads the answers, events and watchers of all jobs, and Temporal's runs."""

import json
from collections import defaultdict
from collections.abc import Iterator

from tests.chaos.facts import ACCEPTED, Facts, Json, Violation

TERMINAL = frozenset({"succeeded", "failed", "canceled"})
ENDED_RUNS = frozenset({"COMPLETED", "FAILED", "CANCELED", "TERMINATED", "TIMED_OUT", "CONTINUED_AS_NEW"})
ANSWERED = frozenset({*ACCEPTED, 403, 409, 422})
"""What stands: accepted, or refused for a reason that is the caller's."""


def one_run_per_key(facts: Facts) -> Iterator[Violation]:
    """One key: one receipt to the byte, at most one 202, one chain of runs; and no run that nobody was promised."""
    chains: dict[str, set[str]] = defaultdict(set)
    for run in facts.runs:
        chains[run.job].add(run.first)
    for job in facts.jobs:
        receipts = {told.body for told in job.told if told.status in ACCEPTED}
        if len(receipts) > 1:
            shown = tuple(body.decode(errors="replace") for body in sorted(receipts))
            yield Violation("one_run_per_key", job.key, f"{len(receipts)} different receipts", shown)
        if sum(told.status == 202 for told in job.told) > 1:
            yield Violation("one_run_per_key", job.key, "two submissions were told that they created the job")
        found = chains.pop(job.key, set())
        if len(found) > 1:
            yield Violation("one_run_per_key", job.key, f"{len(found)} chains of runs", tuple(sorted(found)))
        if receipts and not found:
            yield Violation("one_run_per_key", job.key, "it was accepted, and Temporal has no run of it")
    for key in chains:
        yield Violation("one_run_per_key", key, "a run that nobody submitted")


def every_key_is_answered(facts: Facts) -> Iterator[Violation]:
    """Whatever happened to the first try: once everything is up, the same request is answered."""
    for job in facts.jobs:
        if not any(told.status in ANSWERED for told in job.told):
            says = f"answered {[told.status for told in job.told]}" if job.told else "never answered"
            yield Violation("every_key_is_answered", job.key, says)


def accepted_ends_or_waits(facts: Facts) -> Iterator[Violation]:
    """Every job that was accepted has ended, or says visibly what it waits for, which nobody has decided; Temporal
    agrees that it is over."""
    decided = {(one.job, one.request) for one in facts.decisions}
    running = {run.job for run in facts.runs if run.status not in ENDED_RUNS}
    for job in facts.jobs:
        if not any(told.status in ACCEPTED for told in job.told):
            continue
        if job.view is None:
            yield Violation("accepted_ends_or_waits", job.key, "its status can not be read")
            continue
        status, pending = job.view["status"], job.view["pending"]
        if status not in TERMINAL and not (status == "waiting_for_human" and pending):
            says = f"{status}, and nothing is asked: {json.dumps(job.view['last_event'])}"
            yield Violation("accepted_ends_or_waits", job.key, says)
        elif pending and all((job.key, one["request_id"]) in decided for one in pending):
            yield Violation("accepted_ends_or_waits", job.key, "it waits for what is decided")
        if status in TERMINAL and job.key in running:
            yield Violation("accepted_ends_or_waits", job.key, f"it says {status}, and Temporal still runs it")


def events_have_no_gap(facts: Facts) -> Iterator[Violation]:
    """A job's events are numbered from 1 without a gap, and the last one is its end."""
    for job in facts.jobs:
        if job.view is None:
            continue
        numbers = [event["seq"] for event in job.events if event["seq"] is not None]
        if numbers != list(range(1, len(numbers) + 1)) or not numbers:
            yield Violation("events_have_no_gap", job.key, f"events are numbered {numbers}")
        elif job.view["status"] in TERMINAL and not _ends(job.events[-1]):
            yield Violation("events_have_no_gap", job.key, f"it ended, and its last event is {job.events[-1]['type']}")


def watchers_miss_nothing(facts: Facts) -> Iterator[Violation]:
    """Each watcher saw the events from 1 on, each once, over all its reconnects; and the ones that all others see."""
    final = {job.key: {event["seq"]: event["type"] for event in job.events} for job in facts.jobs}
    for watch in facts.watches:
        numbers = [seq for seq, _ in watch.given if seq is not None]
        if numbers != list(range(1, len(numbers) + 1)):
            says = f"a watcher by {watch.how} was given {numbers} over {watch.resumed} reconnects"
            yield Violation("watchers_miss_nothing", watch.job, says)
        other = [(seq, type) for seq, type in watch.given if final.get(watch.job, {}).get(seq, type) != type]
        if other:
            yield Violation("watchers_miss_nothing", watch.job, f"a watcher was given {other}, which is not in the log")


def status_never_returns(facts: Facts) -> Iterator[Violation]:
    """Once a job was seen ended it is seen so, and in the same way, for ever."""
    for job in facts.jobs:
        for one in job.seen:
            seen = [*one, *([job.view["status"]] if job.view else [])]
            first = next((number for number, status in enumerate(seen) if status in TERMINAL), len(seen))
            if len(set(seen[first:])) > 1:
                yield Violation("status_never_returns", job.key, f"it was seen {' then '.join(_changes(seen))}")


def cancel_has_one_time(facts: Facts) -> Iterator[Violation]:
    """Every answer to cancel has the first one's time, and what was canceled while open ends canceled, or had ended."""
    jobs = {job.key: job for job in facts.jobs}
    times: dict[str, set[str]] = defaultdict(set)
    for cancel in facts.cancels:
        if cancel.requested_at is not None:
            times[cancel.job].add(cancel.requested_at)
    for key, found in times.items():
        if len(found) > 1:
            yield Violation("cancel_has_one_time", key, f"cancel_requested_at was {sorted(found)}")
        job = jobs.get(key)
        if job is not None and job.view is not None and job.view["status"] not in TERMINAL:
            yield Violation("cancel_has_one_time", key, f"it was canceled, and is {job.view['status']}")


def one_verdict_per_request(facts: Facts) -> Iterator[Violation]:
    """Whoever asks, one verdict stands for a request for ever, and it is the ledger's."""
    stands: dict[tuple[str, str], set[str]] = defaultdict(set)
    for one in facts.decisions:
        if one.decision not in ("expired", "voided"):
            stands[one.job, one.request].add(one.decision)
    for one in facts.verdicts:
        if one.stands is not None:
            stands[one.job, one.request].add(one.stands)
    for (job, request), found in stands.items():
        if len(found) > 1:
            yield Violation("one_verdict_per_request", job, f"{request} was said to be {sorted(found)}")


def reads_change_nothing(facts: Facts) -> Iterator[Violation]:
    """Over a phase in which only reads were made, no history grew and no row came, went or changed."""
    before, after = facts.quiet.before, facts.quiet.after
    for name in sorted({*before, *after}):
        if before.get(name) != after.get(name):
            says = f"{name} was {before.get(name)} and is {after.get(name)} after {facts.quiet.reads} reads"
            yield Violation("reads_change_nothing", name, says)


def answers_are_fit(facts: Facts) -> Iterator[Violation]:
    """No 500, no 404 for a job that was accepted, and nothing in an answer that no app may be told."""
    for odd in facts.odd:
        yield Violation("answers_are_fit", odd.what, f"{odd.status}: {odd.says}")


def _ends(event: Json) -> bool:
    return event["type"] in ("job.succeeded", "job.failed", "job.canceled")


def _changes(seen: list[str]) -> list[str]:
    return [now for before, now in zip(["", *seen], seen, strict=False) if now != before]
