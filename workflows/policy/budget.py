"""What a job has spent against what it may spend. Steps and tokens are counts, cost is US dollars.

Nothing new starts once a budget is used up; at 80 % of one there is one warning. Counts are real: they are added as
they are spent, and an attempt that failed has spent its step.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal

from workflows.contract.job import Limits, Usage

WARN_AT = Decimal("0.8")


@dataclass(frozen=True, slots=True)
class Share:
    """One budget: its name, what is used and what is allowed."""

    budget: str
    used: Decimal
    limit: Decimal

    def spent(self) -> bool:
        return self.used >= self.limit

    def nearly(self) -> bool:
        return self.used >= self.limit * WARN_AT


def shares(usage: Usage, limits: Limits) -> Iterator[Share]:
    yield Share("steps", Decimal(usage.steps), Decimal(limits.max_steps))
    yield Share("tokens", Decimal(usage.input_tokens + usage.output_tokens), Decimal(limits.max_tokens))
    if limits.max_cost_usd is not None:
        yield Share("cost_usd", usage.cost_usd, limits.max_cost_usd)


def spent(usage: Usage, limits: Limits) -> Share | None:
    """The first budget with nothing left, if any."""
    return next((share for share in shares(usage, limits) if share.spent()), None)


def nearly_spent(usage: Usage, limits: Limits) -> tuple[Share, ...]:
    return tuple(share for share in shares(usage, limits) if share.nearly())


def add(
    usage: Usage, *, steps: int = 0, input_tokens: int = 0, output_tokens: int = 0, cost_usd: Decimal | None = None
) -> Usage:
    return usage.model_copy(
        update={
            "steps": usage.steps + steps,
            "input_tokens": usage.input_tokens + input_tokens,
            "output_tokens": usage.output_tokens + output_tokens,
            "cost_usd": usage.cost_usd + (cost_usd or 0),
        }
    )
