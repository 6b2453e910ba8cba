"""The judge of a chaos run: every invariant over the facts that the run left. Pure; each has a mutant."""

from collections.abc import Callable, Iterator

from tests.chaos import rules_calls, rules_jobs
from tests.chaos.facts import Facts, Violation

Rule = Callable[[Facts], Iterator[Violation]]

RULES: tuple[Rule, ...] = (
    rules_jobs.one_run_per_key,
    rules_jobs.every_key_is_answered,
    rules_calls.write_at_most_once,
    rules_calls.one_effect_per_call,
    rules_calls.epochs_rise,
    rules_calls.nothing_after_cancel,
    rules_calls.nothing_after_deadline,
    rules_calls.writes_are_decided,
    rules_calls.nothing_after_revocation,
    rules_calls.ledger_agrees,
    rules_jobs.accepted_ends_or_waits,
    rules_jobs.status_never_returns,
    rules_jobs.events_have_no_gap,
    rules_jobs.watchers_miss_nothing,
    rules_jobs.cancel_has_one_time,
    rules_jobs.one_verdict_per_request,
    rules_jobs.reads_change_nothing,
    rules_jobs.answers_are_fit,
)


def names() -> list[str]:
    return [rule.__name__ for rule in RULES]


def check(facts: Facts) -> list[Violation]:
    """Everything that is wrong, in the order of `RULES`."""
    return [violation for rule in RULES for violation in rule(facts)]
