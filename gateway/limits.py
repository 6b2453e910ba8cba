"""What a job may spend and what its principal has left: the least of snapshot, grants and what was asked."""

from datetime import datetime, timedelta
from decimal import Decimal

from sqlalchemy import Connection

from gateway.authority import GrantLimits
from gateway.jobrequest import JobRequest
from gateway.ledger.spending import bills
from workflows.contract.errors import ProblemCode, Refused
from workflows.contract.ids import PrincipalId, Workspace
from workflows.contract.job import Limits

DAY = timedelta(days=1)


def narrowed(limits: Limits, granted: GrantLimits, asked: JobRequest) -> Limits:
    """What this job may spend: the least of snapshot, grant and what was asked. Asking for more is `limit-exceeded`."""
    allowed = least(limits, granted)
    budget = asked.budget
    wants: dict[str, int | Decimal | None] = {
        "max_steps": budget.max_steps if budget else None,
        "max_tokens": budget.max_tokens if budget else None,
        "max_cost_usd": asked.max_cost,
    }
    for name, want in wants.items():
        bound = getattr(allowed, name)
        if want is not None and bound is not None and want > bound:
            raise Refused(ProblemCode.LIMIT_EXCEEDED, f"budget.{name}: at most {bound} is allowed.", limit=name)
    return allowed.model_copy(update={name: want for name, want in wants.items() if want is not None})


def least(limits: Limits, granted: GrantLimits) -> Limits:
    """Per limit, the lower of what the snapshot allows and what the caller's grants state."""
    stated = granted.over(limits)
    costs = [cost for cost in (limits.max_cost_usd, stated.max_cost_usd) if cost is not None]
    return Limits(
        max_steps=min(limits.max_steps, stated.max_steps),
        max_duration_seconds=min(limits.max_duration_seconds, stated.max_duration_seconds),
        max_tokens=min(limits.max_tokens, stated.max_tokens),
        max_cost_usd=min(costs, default=None),
    )


def day_is_bounded(granted: GrantLimits) -> bool:
    return granted.max_tokens_per_day is not None or granted.max_cost_usd_per_day is not None


def day_is_spent(
    conn: Connection, workspace: Workspace, principal: PrincipalId, granted: GrantLimits, now: datetime
) -> bool:
    """Whether the principal's jobs used up, in the last 24 hours, what its grants give for a day."""
    bill = bills(conn, workspace, since=now - DAY, until=now, principal=principal).get(principal)
    if bill is None:
        return False
    tokens, cost = granted.max_tokens_per_day, granted.max_cost_usd_per_day
    return (tokens is not None and bill.input_tokens + bill.output_tokens >= tokens) or (
        cost is not None and bill.cost_usd >= Decimal(cost)
    )
