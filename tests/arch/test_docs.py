"""The guide says what the tables say: every event with its data keys, every problem, every blocker."""

from pathlib import Path

import pytest

from workflows.contract.errors import PROBLEMS, ProblemCode
from workflows.contract.events import EVENT_DATA, EventType
from workflows.policy.eligibility import RULES, Rule

GUIDE = (Path(__file__).parents[2] / "docs" / "guide.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("event", EventType)
def test_every_event_is_documented_with_its_data(event: EventType) -> None:
    keys = ", ".join(f"`{key}`" for key in sorted(EVENT_DATA[event])) or "(none)"
    assert f"| `{event}` | {keys} |" in GUIDE


@pytest.mark.parametrize("code", ProblemCode)
def test_every_problem_is_documented(code: ProblemCode) -> None:
    row = PROBLEMS[code]
    assert f"| `{code}` | {row.status} | {'yes' if row.retryable else 'no'} | {row.title} |" in GUIDE


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_of_eligibility_is_documented(rule: Rule) -> None:
    assert f"| `{rule.eligibility}` | `{rule.blocker}` | {rule.not_yet} |" in GUIDE
