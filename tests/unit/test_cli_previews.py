"""What `jobgate preview` and `jobgate simulate` send and show; any answer is exit 0, a refusal is not."""

import json
from typing import Any

import pytest

from tests.unit.fake_api import FakeApi, problem
from tests.unit.test_cli import Command, answer, api, command

__all__ = ["api", "command"]

FLAGS = dict.fromkeys(
    (
        *("worker_executed", "state_mutated", "process_started"),
        *("approval_consumed", "config_changed", "phase_promoted"),
    ),
    False,
)
HELD: dict[str, Any] = {
    "eligibility": "dry_run_eligible",
    "blocker": "awaiting_promotion",
    "projected_status": "queued",
    "would_change": True,
    "would_execute": False,
    "next_gate": "live",
    "not_yet": "Not yet: this version awaits promotion; until then it may only be rehearsed.",
    "side_effects": FLAGS,
}
LIVE: dict[str, Any] = {
    **HELD,
    "eligibility": "live_approved",
    "blocker": None,
    "projected_status": "running",
    "would_execute": True,
    "next_gate": None,
    "not_yet": None,
}
BLOCKED: dict[str, Any] = {
    **HELD,
    "eligibility": "blocked",
    "blocker": "phase_blocked_noop",
    "projected_status": None,
    "would_change": False,
    "next_gate": "stateful_noop",
}
SIMULATED: dict[str, Any] = {
    "eligibility": "dry_run_eligible",
    "candidates": [
        {"lane": "default", "fits": False, "missing": ["gpu"], "pollers_seen_at": "2030-01-31T12:00:00.000000Z"},
        {"lane": "big", "fits": True, "missing": [], "pollers_seen_at": None},
    ],
    "execution": "disabled",
}
VERSION = "/v1/plugins/p/versions/1.0.0/simulations"


def test_preview_sends_the_body_of_a_submission_and_no_key(api: FakeApi, command: Command) -> None:
    answer(api, "POST", "/v1/previews", HELD)
    code, _, err = command("preview", "p", "--input", '{"n": 1.0}', "--mode", "dry_run", "--version", "2")
    assert (code, err) == (0, "")
    (asked,) = api.asked
    assert asked.json == {"plugin": "p", "version": "2", "mode": "dry_run", "on_blocked": "hold", "input": {"n": 1.0}}
    assert '"input": {"n": 1.0}' in asked.body
    assert "Idempotency-Key" not in asked.headers


@pytest.mark.parametrize(
    ("shown", "head", "would"),
    [
        (HELD, "p  dry_run_eligible, awaiting_promotion", "be accepted and held"),
        ({**HELD, "projected_status": "succeeded"}, "p  dry_run_eligible, awaiting_promotion", "be planned and end"),
        (LIVE, "p  live_approved", "run: the model and its tools would be called"),
        (BLOCKED, "p  blocked, phase_blocked_noop", "be refused: no job would exist"),
    ],
)
def test_preview_says_in_words_what_would_be(
    api: FakeApi, command: Command, shown: dict[str, Any], head: str, would: str
) -> None:
    answer(api, "POST", "/v1/previews", shown)
    code, out, _ = command("preview", "p")
    assert code == 0
    lines = out.splitlines()
    assert lines[0] == head
    assert lines[1].split(None, 1) == ["would", lines[1].split(None, 1)[1]]
    assert would in lines[1]
    assert ("Not yet" in out) == (shown["not_yet"] is not None)
    assert "nothing was changed (all 6 side-effect flags are false)" in out


@pytest.mark.parametrize(
    ("members", "would"),
    [
        ({"would_change": False}, "stay queued"),
        ({"projected_status": "failed"}, "go on to failed by itself"),
        ({"would_execute": True, "projected_status": "running"}, "run: the model"),
    ],
)
def test_preview_of_a_job_says_what_becomes_of_it(
    api: FakeApi, command: Command, members: dict[str, Any], would: str
) -> None:
    answer(api, "GET", "/v1/jobs/k-1/preview", {**HELD, **members})
    code, out, _ = command("preview", "--job", "k-1")
    assert code == 0
    assert out.startswith("k-1  dry_run_eligible")
    assert would in out
    assert ("packet create" in out) == (would == "stay queued"), "live alone releases no held job"


def test_a_flag_that_is_true_is_shouted(api: FakeApi, command: Command) -> None:
    answer(api, "POST", "/v1/previews", {**HELD, "side_effects": {**FLAGS, "process_started": True}})
    _, out, _ = command("preview", "p")
    assert "WARNING" in out
    assert "process_started" in out
    assert "nothing was changed" not in out


@pytest.mark.parametrize(
    "arguments",
    [
        ("preview",),
        ("preview", "p", "--job", "k-1"),
        ("preview", "p", "--input", "{"),
        ("simulate", "p"),
        ("simulate", "p", "1", "--version", "1"),
    ],
)
def test_what_is_not_named_once_is_a_usage_error(api: FakeApi, command: Command, arguments: tuple[str, ...]) -> None:
    code, out, _ = command(*arguments)
    assert (code, out) == (2, "")
    assert api.asked == []


@pytest.mark.parametrize("version", [("1.0.0",), ("--version", "1.0.0")])
def test_simulate_shows_every_lane_and_what_it_lacks(api: FakeApi, command: Command, version: tuple[str, ...]) -> None:
    answer(api, "POST", VERSION, SIMULATED)
    code, out, _ = command("simulate", "p", *version, "--input", '{"n": 1}')
    assert code == 0
    assert api.asked[0].json == {"plugin": "p", "input": {"n": 1}}
    lines = [line.split() for line in out.splitlines()]
    assert lines[0] == ["p", "1.0.0", "dry_run_eligible"]
    assert lines[2] == ["default", "no", "2030-01-31T12:00:00.000000Z", "gpu"]
    assert lines[3] == ["big", "yes", "nobody", "polls", "it", "nothing"]
    assert "would run on big" in out
    assert "nothing ran" in out


def test_json_is_the_answer_and_nothing_else(api: FakeApi, command: Command) -> None:
    answer(api, "POST", "/v1/previews", HELD)
    answer(api, "GET", "/v1/jobs/k-1/preview", HELD)
    answer(api, "POST", VERSION, SIMULATED)
    assert command("preview", "p", "--json") == (0, json.dumps(HELD) + "\n", "")
    assert command("preview", "--job", "k-1", "--json") == (0, json.dumps(HELD) + "\n", "")
    assert command("simulate", "p", "1.0.0", "--json") == (0, json.dumps(SIMULATED) + "\n", "")


def test_a_refusal_is_exit_1(api: FakeApi, command: Command) -> None:
    api.answers["POST", "/v1/previews"] = [problem(404, "plugin-unknown")]
    api.answers["POST", VERSION] = [problem(403, "not-permitted")]
    assert command("preview", "p")[0] == 1
    assert command("simulate", "p", "1.0.0")[0] == 1
