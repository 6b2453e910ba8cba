"""What a gate judges and what it answers: phases, eligibility, blockers, the admitted facts, and a packet's terms.

Words and shapes only; the rules are `workflows.policy.eligibility` and `workflows.policy.promotion`.
"""

from enum import StrEnum
from typing import Literal

from workflows.contract.carried import Carried
from workflows.contract.ids import ToolName

Phase = Literal["blocked_noop", "stateful_noop", "live_canary", "live"]
PHASES: tuple[Phase, ...] = ("blocked_noop", "stateful_noop", "live_canary", "live")


class Eligibility(StrEnum):
    BLOCKED = "blocked"
    LOCAL_ONLY = "local_only"
    DRY_RUN_ELIGIBLE = "dry_run_eligible"
    LIVE_APPROVED = "live_approved"


class Blocker(StrEnum):
    """What is missing; with BLOCKED and LOCAL_ONLY it explains the refusal, with DRY_RUN_ELIGIBLE the wait."""

    PHASE_BLOCKED_NOOP = "phase_blocked_noop"
    RELEASE_MISSING = "release_missing"
    DEPLOYMENT_MISSING = "deployment_missing"
    VERSION_WITHDRAWN = "version_withdrawn"
    SNAPSHOT_MISMATCH = "snapshot_mismatch"
    SCOPE_VIOLATION = "scope_violation"
    LIMIT_EXCEEDED = "limit_exceeded"
    LOCAL_ONLY_BY_CONTRACT = "local_only_by_contract"
    CAPABILITY_UNAVAILABLE = "capability_unavailable"
    AWAITING_PROMOTION = "awaiting_promotion"


class EligibilityFacts(Carried):
    """What `policy.eligibility.classify` judges, frozen at admission and judged again inside the workflow."""

    scope_ok: bool = True
    authority_ok: bool = True
    limits_ok: bool = True
    snapshot_ok: bool = True
    released: bool = True
    deployed: bool = True
    withdrawn: bool = False
    version_phase: Phase
    runtime_phase: Phase
    offload: Literal["allowed", "local_only"] = "allowed"
    capabilities_met: bool = True
    packet_redeemed: bool = False


class PacketTerms(Carried):
    tools: tuple[ToolName, ...]
    max_steps: int
