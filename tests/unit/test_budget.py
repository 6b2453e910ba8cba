"""Budgets: counts are exact, the warning comes at 80 %, nothing is left at the limit."""

from decimal import Decimal

import pytest

from workflows.contract.job import Limits, Usage
from workflows.policy.budget import add, nearly_spent, shares, spent


def limits(**less: object) -> Limits:
    return Limits.model_validate({"max_steps": 10, "max_duration_seconds": 60, "max_tokens": 1000, **less})


@pytest.mark.parametrize("steps", range(13))
def test_steps_warn_at_eighty_percent_and_end_at_the_limit(steps: int) -> None:
    usage = Usage(steps=steps)
    assert [share.budget for share in nearly_spent(usage, limits())] == (["steps"] if steps >= 8 else [])
    share = spent(usage, limits())
    assert (share.budget if share else None) == ("steps" if steps >= 10 else None)


@pytest.mark.parametrize(
    ("tokens_in", "tokens_out", "warns", "ends"),
    [
        (799, 0, False, False),
        (400, 400, True, False),
        (999, 0, True, False),
        (0, 1000, True, True),
        (2000, 0, True, True),
    ],
)
def test_tokens_in_and_out_are_one_budget(tokens_in: int, tokens_out: int, warns: bool, ends: bool) -> None:
    usage = Usage(input_tokens=tokens_in, output_tokens=tokens_out)
    assert bool(nearly_spent(usage, limits())) is warns
    assert bool(spent(usage, limits())) is ends


def test_money_is_decimal_and_exact() -> None:
    usage = Usage()
    for _ in range(3):
        usage = add(usage, cost_usd=Decimal("0.1"))
    assert usage.cost_usd == Decimal("0.3")
    share = spent(usage, limits(max_cost_usd=Decimal("0.3")))
    assert share is not None
    assert (share.budget, share.used, share.limit) == ("cost_usd", Decimal("0.3"), Decimal("0.3"))


def test_no_money_limit_is_no_money_budget() -> None:
    usage = Usage(cost_usd=Decimal(10**9))
    assert [share.budget for share in shares(usage, limits())] == ["steps", "tokens"]
    assert spent(usage, limits()) is None


def test_limit_of_nothing_is_used_up_from_the_start() -> None:
    assert spent(Usage(), limits(max_steps=0)) is not None


def test_unknown_cost_adds_nothing_and_add_changes_only_a_copy() -> None:
    before = Usage(steps=1)
    after = add(before, steps=1, input_tokens=2, output_tokens=3, cost_usd=None)
    assert before == Usage(steps=1)
    assert after == Usage(steps=2, input_tokens=2, output_tokens=3)
