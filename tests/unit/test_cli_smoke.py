"""What `jobgate smoke` sends, shows, writes and exits with."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from gateway.cli.smoke_page import page_of
from tests.unit.fake_api import FakeApi, problem
from tests.unit.test_cli import Command, answer, api, command

__all__ = ["api", "command"]

AT = "2030-01-31T12:00:00.000000Z"
FLAGS = (
    "worker_executed",
    "state_mutated",
    "process_started",
    "approval_consumed",
    "config_changed",
    "phase_promoted",
)
PROCESS: dict[str, Any] = {
    "kind": "worker",
    "identity": "12@host",
    "lane": "default",
    "build": "0.1.0+60796fa8",
    "config": "sha256:1ae510c15afae282",
    "warnings": 0,
    "last_warning": None,
}
GREEN: dict[str, Any] = {
    "rung": "blocked_noop",
    "allowed": ["liveness", "the list of jobs"],
    "flags": dict.fromkeys(FLAGS, False),
    "evidence": {
        "smoke_id": "smoke_1",
        "verdict": "green",
        "reasons": [],
        "plugin": "support-refund",
        "version": "1.0.0",
        "digest": "sha256:" + "0" * 64,
        "flags": {
            flag: {"means": "a thing happened", "before": {"rows": 3}, "after": {"rows": 3}, "found": []}
            for flag in FLAGS
        },
        "foreign": [],
        "exercised": {"reads": 2, "refusals": 1, "refused": ["an unknown job: 404 not-found"], "unexpected": []},
        "not_exercised": [{"what": "a session", "reason": "no session exists"}],
        "census": {"first_at": AT, "second_at": AT, "before": {}, "after": {}, "bounded": []},
        "processes": [PROCESS],
        "started_at": AT,
        "finished_at": AT,
    },
    "next_gate": "stateful_noop",
    "not_yet": "Not yet: it starts no job.",
}


def red() -> dict[str, Any]:
    report = copy.deepcopy(GREEN)
    report["flags"]["state_mutated"] = True
    found = "blobs: +1, +9 bytes <script>alert(1)</script>"
    report["evidence"]["flags"]["state_mutated"] |= {"after": {"rows": 4}, "found": [found]}
    report["evidence"] |= {"verdict": "red", "reasons": [f"state_mutated: {found}", "no worker is alive"]}
    return report


def test_a_green_smoke_exits_0_and_says_what_may_and_what_must_not_be(api: FakeApi, command: Command) -> None:
    answer(api, "POST", "/v1/smokes", GREEN)
    code, out, err = command("smoke", "--plugin", "support-refund")
    assert (code, err) == (0, "")
    assert api.asked[0].json == {"plugin": "support-refund", "version": None}
    lines = out.splitlines()
    assert lines[0] == "support-refund 1.0.0  smoke green"
    assert "  rung     blocked_noop" in lines
    assert "  allowed  2 reads: liveness, the list of jobs" in lines
    assert all(f"    no        {flag:<17}  rows 3" in lines for flag in FLAGS)
    todo = "  next     jobgate promote support-refund 1.0.0 --to stateful_noop"
    assert lines[-2:] == [todo, "  Not yet: it starts no job."]
    assert "1 probes can not be sent now" in out
    assert "no session exists" in command("smoke", "--plugin", "support-refund", "--verbose")[2]


@pytest.mark.parametrize(
    ("verdict", "todo"), [("red", "see to what is named above"), ("inconclusive", "when nothing else goes on")]
)
def test_whatever_is_not_green_exits_1_and_names_no_gate(
    api: FakeApi, command: Command, verdict: str, todo: str
) -> None:
    report = copy.deepcopy(GREEN)
    report["evidence"] |= {"verdict": verdict, "reasons": ["somebody else's: audit: a new row"], "plugin": None}
    answer(api, "POST", "/v1/smokes", report)
    code, out, _ = command("smoke")
    assert code == 1
    assert out.startswith(f"runtime  smoke {verdict}\n")
    assert "somebody else's: audit: a new row" in out
    told = next(line for line in out.splitlines() if line.startswith("  next "))
    assert todo in told
    assert "stateful_noop" not in told


def test_a_raised_flag_is_shown_with_what_was_found_and_what_was_counted(api: FakeApi, command: Command) -> None:
    answer(api, "POST", "/v1/smokes", red())
    code, out, _ = command("smoke", "--plugin", "support-refund")
    assert code == 1
    assert "    HAPPENED  state_mutated      rows 3 -> 4\n              blobs: +1, +9 bytes" in out
    assert "  why it is not green\n    no worker is alive\n" in out


def test_json_is_the_answer_alone_and_the_page_is_written_beside_it(
    api: FakeApi, command: Command, tmp_path: Path
) -> None:
    answer(api, "POST", "/v1/smokes", red())
    page = tmp_path / "smoke.html"
    code, out, _ = command("smoke", "--plugin", "support-refund", "--json", "--html", str(page))
    assert (code, json.loads(out)) == (1, red())
    assert page.read_text(encoding="utf-8") == page_of(red())


def test_the_page_says_it_all_escapes_it_and_needs_nothing_else() -> None:
    page = page_of(red())
    for told in ("support-refund 1.0.0", "blocked_noop", "Not yet: it starts no job.", "no session exists", *FLAGS):
        assert told in page
    assert "<script>" not in page
    assert not any(outside in page for outside in ("http:", "https:", "src=", "url(", "@import"))
    assert "nothing else happened" in page_of(GREEN)


def test_a_page_that_can_not_be_written_is_a_usage_error(api: FakeApi, command: Command, tmp_path: Path) -> None:
    answer(api, "POST", "/v1/smokes", GREEN)
    code, _, err = command("smoke", "--html", str(tmp_path / "no" / "smoke.html"))
    assert code == 2
    assert "can not be written" in err


def test_a_version_without_a_plugin_is_a_usage_error_and_a_refusal_exits_1(api: FakeApi, command: Command) -> None:
    assert command("smoke", "--version", "1.0.0")[0] == 2
    assert api.asked == []
    api.answers["POST", "/v1/smokes"] = [problem(404, "plugin-unknown")]
    assert command("smoke", "--plugin", "nobody")[0] == 1
