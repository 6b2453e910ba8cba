"""The guides say what the tables say: every event with its data keys, every problem, every blocker, every field."""

from pathlib import Path
from typing import get_args

import pytest

from gateway.deployments import Connection, Credential, Deployment, ModelConnection, Price
from gateway.manifest import Approval, Callback, DeclaredLimits, Dependency, HttpCall, Manifest, McpCall, Tool
from gateway.packets import PacketState
from gateway.rungs import MEANINGS, RungName
from gateway.script import ScriptCall, ScriptEntry, ScriptFail, ScriptUsage
from gateway.shapes import Shape
from workflows.contract.errors import PROBLEMS, ProblemCode
from workflows.contract.events import EVENT_DATA, EventType
from workflows.contract.gates import PHASES, Blocker, Phase
from workflows.policy.eligibility import RULES, Rule
from workflows.policy.promotion import NEEDS

DOCS = Path(__file__).parents[2] / "docs"
GUIDE = (DOCS / "guide.md").read_text(encoding="utf-8")
FILES_GUIDE = (DOCS / "plugins.md").read_text(encoding="utf-8")
FILES: list[type[Shape]] = [
    *(Manifest, Dependency, DeclaredLimits, Tool, HttpCall, McpCall, Approval, Callback),
    *(Deployment, Connection, ModelConnection, Credential, Price),
    *(ScriptEntry, ScriptCall, ScriptFail, ScriptUsage),
]


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


@pytest.mark.parametrize("rung", MEANINGS)
def test_every_rung_of_readiness_is_documented(rung: RungName) -> None:
    assert f"| `{rung}` | {MEANINGS[rung].proves} | {MEANINGS[rung].does_not_prove} |" in GUIDE


def test_the_blockers_that_say_what_to_do_are_those_that_there_are() -> None:
    table = GUIDE.split("| blocker | what to do |\n|---|---|\n")[1].split("\n\n")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()]
    assert sorted(code for code, _ in rows) == sorted(f"`{code}`" for code in Blocker)
    assert all(advice.endswith(".") for _, advice in rows)
    assert {rule.blocker for rule in RULES} == set(Blocker)


@pytest.mark.parametrize("phase", PHASES)
def test_every_phase_is_documented_with_what_its_gate_asks_for(phase: Phase) -> None:
    assert f"\n| `{phase}` | " in GUIDE
    for need in NEEDS.get(phase, ()):
        assert f"| `{phase}` | {need.missing}" in GUIDE


@pytest.mark.parametrize("state", get_args(PacketState))
def test_every_state_of_a_packet_is_documented(state: str) -> None:
    table = GUIDE.split("| state | means | next |\n")[1].split("\n\n")[0]
    assert f"`{state}`" in "".join(line.split(" | ")[0] for line in table.splitlines())


@pytest.mark.parametrize("shape", FILES, ids=lambda shape: shape.__name__)
def test_every_field_of_a_file_is_documented(shape: type[Shape]) -> None:
    missing = [name for name in shape.model_fields if f"`{name}`" not in FILES_GUIDE]
    assert missing == []
