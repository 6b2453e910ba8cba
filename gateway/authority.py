"""Who may do what: a call needs the scope in its token *and* a valid grant of its principal (api.md, Operators).

`decide` is pure: facts in, a verdict with its reason out. Denials are values; routes turn them into refusals. Grants
add up: what one allows, another does not take away, and that holds for limits too.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Literal, TypeVar
from uuid import uuid4

from pydantic import Field
from sqlalchemy import Connection

from gateway.ledger.engine import Ledger
from gateway.ledger.grants import GrantRow, NewGrant, insert_grant
from gateway.ledger.phases import NewPromotion, insert_promotion, runtime_phase
from gateway.manifest import DecimalText, DeclaredLimits
from gateway.scopes import DEMO, Action, Caller
from workflows.contract.gates import Phase
from workflows.contract.ids import PluginName, PrincipalId

EVERY = "*"

PYTHON_TOOLS = "tools:python"
"""An action without a scope: a job whose principal has it may run code inside the worker."""

ADMIN_ACTIONS = tuple(action.value for action in Action if action is not Action.JOBS_DECIDE)
"""What a workspace's first principal gets: whoever runs it does not also decide in it."""

_DEMO_GRANTS: dict[str, tuple[str, ...]] = {
    "app": ("jobs:submit", "jobs:read", "jobs:cancel", "sessions:read"),
    "operator": ADMIN_ACTIONS,
    "approver": ("jobs:decide",),
}


class GrantLimits(DeclaredLimits):
    """What a grant bounds beside the limits of a job; an absent one is not bounded."""

    max_concurrent_jobs: int | None = Field(default=None, ge=1, le=1_000_000)
    max_tokens_per_day: int | None = Field(default=None, ge=1, le=10**12)
    max_cost_usd_per_day: DecimalText | None = None
    """Used up by all jobs of the principal in the last 24 hours."""
    tools: tuple[str, ...] | None = Field(default=None, max_length=128)
    """The tools that its jobs may call."""


@dataclass(frozen=True)
class Allowed:
    limits: GrantLimits


@dataclass(frozen=True)
class Denied:
    """`reason` is a sentence for the caller; it names the action, and nothing the caller did not know."""

    lacks: Literal["scope", "grant"]
    reason: str


def decide(
    caller: Caller, grants: Iterable[GrantRow], action: Action, plugin: PluginName | None, now: datetime
) -> Allowed | Denied:
    """`plugin` None: the action concerns no plugin. `grants` are the caller's, valid or not."""
    if action not in caller.scopes:
        return Denied("scope", f"The credential lacks the scope {action.value}.")
    own = [grant for grant in grants if (grant.workspace, grant.principal) == (caller.workspace, caller.principal)]
    return granted(own, action, plugin, now)


def granted(grants: Iterable[GrantRow], action: Action, plugin: PluginName | None, now: datetime) -> Allowed | Denied:
    """What grants alone allow: for a job that runs on somebody's authority without a token."""
    fitting = [grant for grant in grants if _fits(grant, action, plugin, now)]
    if not fitting:
        return Denied("grant", f"No valid grant allows {action.value}{' on this plugin' if plugin else ''}.")
    return Allowed(effective_limits(fitting))


def granted_throughout(
    grants: Iterable[GrantRow], action: Action, plugin: PluginName, since: datetime, now: datetime
) -> bool:
    """Whether grants allowed it at every moment from `since` until now: what was once taken back, no later grant heals.
    `grants` are all that the principal was ever given."""
    reached = since
    for grant in sorted(grants, key=lambda grant: grant.at):
        ends = min((end for end in (grant.revoked_at, grant.expires_at) if end is not None), default=datetime.max)
        ends = ends.replace(tzinfo=UTC)
        if _names(grant, action) and _on_plugin(grant, plugin) and grant.at <= reached < ends:
            reached = ends
    return reached > now


def may_run_python(grants: Iterable[GrantRow], plugin: PluginName, now: datetime) -> bool:
    """Whether a grant names `tools:python` for this plugin. `*` does not: such code sees the worker's environment."""
    return any(
        PYTHON_TOOLS in grant.actions and _in_force(grant, now) and _on_plugin(grant, plugin) for grant in grants
    )


def effective_limits(grants: Iterable[GrantRow]) -> GrantLimits:
    """Per limit, the widest that one of these grants gives; unbounded where one of them does not bound it."""
    limits = [GrantLimits.model_validate(grant.limits) for grant in grants]
    cost = _widest(None if limit.max_cost_usd is None else Decimal(limit.max_cost_usd) for limit in limits)
    cost_per_day = _widest(
        None if limit.max_cost_usd_per_day is None else Decimal(limit.max_cost_usd_per_day) for limit in limits
    )
    tools = [limit.tools for limit in limits]
    return GrantLimits(
        max_steps=_widest(limit.max_steps for limit in limits),
        max_duration_seconds=_widest(limit.max_duration_seconds for limit in limits),
        max_cost_usd=None if cost is None else f"{cost:f}",
        max_tokens=_widest(limit.max_tokens for limit in limits),
        max_concurrent_jobs=_widest(limit.max_concurrent_jobs for limit in limits),
        max_tokens_per_day=_widest(limit.max_tokens_per_day for limit in limits),
        max_cost_usd_per_day=None if cost_per_day is None else f"{cost_per_day:f}",
        tools=None if None in tools else tuple(sorted({name for names in tools for name in names or ()})),
    )


_N = TypeVar("_N", int, Decimal)


def _widest(bounds: Iterable[_N | None]) -> _N | None:
    widest: _N | None = None
    for bound in bounds:
        if bound is None:
            return None
        widest = bound if widest is None else max(widest, bound)
    return widest


def _fits(grant: GrantRow, action: Action, plugin: PluginName | None, now: datetime) -> bool:
    return _names(grant, action) and _in_force(grant, now) and _on_plugin(grant, plugin)


def _names(grant: GrantRow, action: Action) -> bool:
    return action.value in grant.actions or EVERY in grant.actions


def _in_force(grant: GrantRow, now: datetime) -> bool:
    return grant.revoked_at is None and (grant.expires_at is None or now < grant.expires_at)


def _on_plugin(grant: GrantRow, plugin: PluginName | None) -> bool:
    return plugin is None or plugin in grant.plugins or EVERY in grant.plugins


async def seed_demo(ledger: Ledger) -> None:
    """The workspace `demo` (api.md, Commands). Repeating it changes nothing: a grant once revoked stays revoked."""
    now = datetime.now(UTC)

    def seed(conn: Connection) -> None:
        for principal, actions in _DEMO_GRANTS.items():
            grant = NewGrant(
                grant_id=f"grant_demo_{principal}",
                workspace=DEMO,
                principal=PrincipalId(principal),
                actions=actions,
                plugins=(EVERY,),
                limits={},
                expires_at=None,
                by="setup",
                at=now,
            )
            insert_grant(conn, grant)

    await ledger.write(seed)


async def set_runtime_phase(ledger: Ledger, phase: Phase, *, by: PrincipalId, reason: str) -> None:
    """Puts the runtime on a rung at once, and on record; for set-up and development. No row when it stands there."""
    now = datetime.now(UTC)

    def promote(conn: Connection) -> None:
        if runtime_phase(conn) == phase:
            return
        promotion = NewPromotion(
            promotion_id=f"promo_{uuid4().hex}",
            workspace=None,
            plugin=None,
            version=None,
            digest=None,
            phase=phase,
            state="done",
            by=by,
            approved_by=None,
            reason=reason,
            break_glass=True,
            release_held=False,
            at=now,
        )
        insert_promotion(conn, promotion)

    await ledger.write(promote)
