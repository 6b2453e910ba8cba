"""May this run? One ordered list of rules over admitted facts; the first that matches is the answer.

Admission, preview, simulation and the workflow ask this one function. `mode` is no fact of it. Source of the order:
design.md section 6, Ladder.
"""

from collections.abc import Callable
from dataclasses import dataclass

from workflows.contract.gates import PHASES, Blocker, Eligibility, EligibilityFacts, Phase


@dataclass(frozen=True, slots=True)
class Rule:
    """`matches` makes this rule the answer; `not_yet` completes the sentence for an app owner."""

    matches: Callable[[EligibilityFacts], bool]
    eligibility: Eligibility
    blocker: Blocker
    not_yet: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """`next_gate` is the next phase to climb to (None at the top); `not_yet` is None when the gate is open."""

    eligibility: Eligibility
    blocker: Blocker | None
    next_gate: Phase | None
    not_yet: str | None


def lower(one: Phase, other: Phase) -> Phase:
    return PHASES[min(PHASES.index(one), PHASES.index(other))]


def phase_in_force(facts: EligibilityFacts) -> Phase:
    """The lower of the version's and the runtime's phase rules."""
    return lower(facts.version_phase, facts.runtime_phase)


def next_gate(facts: EligibilityFacts) -> Phase | None:
    position = PHASES.index(phase_in_force(facts))
    return PHASES[position + 1] if position + 1 < len(PHASES) else None


RULES: tuple[Rule, ...] = (
    Rule(
        lambda f: not (f.scope_ok and f.authority_ok),
        Eligibility.BLOCKED,
        Blocker.SCOPE_VIOLATION,
        "Not yet: the deployment's agent, connections or credential references are not allowed.",
    ),
    Rule(
        lambda f: not f.limits_ok,
        Eligibility.BLOCKED,
        Blocker.LIMIT_EXCEEDED,
        "Not yet: the limits that apply to this caller are used up.",
    ),
    Rule(
        lambda f: not f.released,
        Eligibility.BLOCKED,
        Blocker.RELEASE_MISSING,
        "Not yet: the plugin has no release; an operator must set one.",
    ),
    Rule(
        lambda f: not f.deployed,
        Eligibility.BLOCKED,
        Blocker.DEPLOYMENT_MISSING,
        "Not yet: the plugin has no deployment that fits this version; an operator must set one.",
    ),
    Rule(
        lambda f: not f.snapshot_ok,
        Eligibility.BLOCKED,
        Blocker.SNAPSHOT_MISMATCH,
        "Not yet: the stored bundle or deployment does not match its digest; an operator must publish it again.",
    ),
    Rule(
        lambda f: f.withdrawn,
        Eligibility.BLOCKED,
        Blocker.VERSION_WITHDRAWN,
        "Not yet: this version was withdrawn; an operator must release another one.",
    ),
    Rule(
        lambda f: phase_in_force(f) == "blocked_noop",
        Eligibility.BLOCKED,
        Blocker.PHASE_BLOCKED_NOOP,
        "Not yet: this version (or the runtime) is in phase blocked_noop; an operator must promote it.",
    ),
    Rule(
        lambda f: f.offload == "local_only",
        Eligibility.LOCAL_ONLY,
        Blocker.LOCAL_ONLY_BY_CONTRACT,
        "Not yet: this plugin says that it runs locally only.",
    ),
    Rule(
        lambda f: not f.capabilities_met,
        Eligibility.LOCAL_ONLY,
        Blocker.CAPABILITY_UNAVAILABLE,
        "Not yet: no place to run offers the capabilities that this plugin requires.",
    ),
    Rule(
        lambda f: phase_in_force(f) != "live" and not f.packet_redeemed,
        Eligibility.DRY_RUN_ELIGIBLE,
        Blocker.AWAITING_PROMOTION,
        "Not yet: this version awaits promotion; until then it may only be rehearsed.",
    ),
)


def classify(facts: EligibilityFacts) -> Verdict:
    """The first rule that matches, else live_approved."""
    for rule in RULES:
        if rule.matches(facts):
            return Verdict(rule.eligibility, rule.blocker, next_gate(facts), rule.not_yet)
    return Verdict(Eligibility.LIVE_APPROVED, None, None, None)
