"""The verdict over the full product of facts and phases, against the sentence of design.md section 6, Ladder."""

from itertools import product
from typing import Literal

import pytest

from workflows.contract.gates import PHASES, EligibilityFacts, Phase
from workflows.policy.eligibility import classify, phase_in_force

RANK = {"blocked_noop": 0, "stateful_noop": 1, "live_canary": 2, "live": 3}
OFFLOADS: tuple[Literal["allowed", "local_only"], ...] = ("allowed", "local_only")
FLAGS = (
    "scope_ok",
    "authority_ok",
    "limits_ok",
    "snapshot_ok",
    "released",
    "deployed",
    "withdrawn",
    "capabilities_met",
    "packet_redeemed",
)


def oracle(facts: EligibilityFacts) -> tuple[str, str | None]:
    """'scope, authority, limit, artifact or digest violation, withdrawn, or phase blocked_noop -> blocked; offload:
    local_only or an unmet capability -> local_only; gate open (live, or its redeemed packet) -> live_approved;
    else -> dry_run_eligible with blocker awaiting_promotion'."""
    lower = min(RANK[facts.version_phase], RANK[facts.runtime_phase])
    blocked = [
        ("scope_violation", not facts.scope_ok),
        ("scope_violation", not facts.authority_ok),
        ("limit_exceeded", not facts.limits_ok),
        ("release_missing", not facts.released),
        ("deployment_missing", not facts.deployed),
        ("snapshot_mismatch", not facts.snapshot_ok),
        ("version_withdrawn", facts.withdrawn),
        ("phase_blocked_noop", lower == 0),
    ]
    for blocker, applies in blocked:
        if applies:
            return "blocked", blocker
    if facts.offload == "local_only":
        return "local_only", "local_only_by_contract"
    if not facts.capabilities_met:
        return "local_only", "capability_unavailable"
    if lower == 3 or facts.packet_redeemed:
        return "live_approved", None
    return "dry_run_eligible", "awaiting_promotion"


@pytest.mark.parametrize("version_phase", PHASES)
@pytest.mark.parametrize("runtime_phase", PHASES)
def test_verdict_over_all_facts(version_phase: Phase, runtime_phase: Phase) -> None:
    for offload in OFFLOADS:
        for values in product((True, False), repeat=len(FLAGS)):
            facts = EligibilityFacts.model_validate(
                {
                    "version_phase": version_phase,
                    "runtime_phase": runtime_phase,
                    "offload": offload,
                    **dict(zip(FLAGS, values, strict=True)),
                }
            )
            verdict = classify(facts)
            assert (verdict.eligibility, verdict.blocker) == oracle(facts)
            assert (verdict.not_yet is None) == (verdict.eligibility == "live_approved")
            assert verdict.not_yet is None or verdict.not_yet.startswith("Not yet")


@pytest.mark.parametrize(
    ("version", "runtime", "gate"),
    [
        ("blocked_noop", "live", "stateful_noop"),
        ("stateful_noop", "live", "live_canary"),
        ("live", "live_canary", "live"),
        ("live", "blocked_noop", "stateful_noop"),
    ],
)
def test_next_gate_is_the_rung_above_the_lower_phase(version: Phase, runtime: Phase, gate: Phase) -> None:
    assert classify(EligibilityFacts(version_phase=version, runtime_phase=runtime)).next_gate == gate


def test_lower_phase_rules() -> None:
    for version, runtime in product(PHASES, PHASES):
        facts = EligibilityFacts(version_phase=version, runtime_phase=runtime)
        assert RANK[phase_in_force(facts)] == min(RANK[version], RANK[runtime])
