"""`jobgate readiness`: one table a tired operator reads, of the right version, and with --json the answer itself."""

import json
from typing import Any

from tests.unit.fake_api import FakeApi, problem
from tests.unit.test_cli import Command, answer, api, command

__all__ = ["api", "command"]

RUNG: dict[str, Any] = {"proves": "Much.", "does_not_prove": "That all is well.", "observed_at": None}
SEEN: dict[str, Any] = {
    "phase": "blocked_noop",
    "rungs": [
        {"rung": "configured", "reached": True, "evidence": "All fits.", **RUNG, "observed_at": "2020-01-01T00:00:00Z"},
        {"rung": "loaded", "reached": False, "evidence": "No live worker.", **RUNG},
    ],
    "next_gate": "stateful_noop",
    "not_yet": "Not yet: a smoke is missing.",
}
OF_TWO = "/v1/plugins/p/versions/2.0.0/readiness"


def test_the_runtime_is_what_no_plugin_is_named_for(api: FakeApi, command: Command) -> None:
    answer(api, "GET", "/v1/readiness", {**SEEN, "phase": "live", "next_gate": None})
    code, out, err = command("readiness")
    assert (code, err) == (0, "")
    head, names, configured, loaded, gate, not_yet = out.splitlines()
    assert (head, names.split()) == ("runtime  live", ["RUNG", "SEEN", "EVIDENCE"])
    assert configured.split()[:2] == ["configured", "yes"]
    assert configured.split()[3:] == ["d", "All", "fits."]
    assert loaded.split() == ["loaded", "NO", "-", "No", "live", "worker."]
    assert gate.strip() == "next gate  none: this is the top"
    assert not_yet.strip() == SEEN["not_yet"]


def test_a_plugin_is_shown_in_its_released_version_else_its_newest(api: FakeApi, command: Command) -> None:
    answer(api, "GET", OF_TWO, SEEN)
    answer(api, "GET", "/v1/plugins/p/releases", {"data": [{"version": "2.0.0"}, {"version": "1.0.0"}]})
    assert command("readiness", "p")[1].startswith("p 2.0.0  blocked_noop\n")
    answer(api, "GET", "/v1/plugins/p/releases", {"data": []})
    answer(api, "GET", "/v1/plugins/p/versions", {"data": [{"version": "1.0.0"}, {"version": "2.0.0"}]})
    assert command("readiness", "p")[1].startswith("p 2.0.0  blocked_noop\n")
    assert [asked.path for asked in api.asked].count(OF_TWO) == 2


def test_with_json_the_answer_alone_is_told(api: FakeApi, command: Command) -> None:
    answer(api, "GET", OF_TWO, SEEN)
    code, out, err = command("readiness", "p", "--version", "2.0.0", "--json")
    assert (code, json.loads(out), err) == (0, SEEN, "")


def test_verbose_says_what_each_rung_proves_and_what_it_does_not(api: FakeApi, command: Command) -> None:
    answer(api, "GET", "/v1/readiness", SEEN)
    _, _, err = command("readiness", "--verbose")
    assert err.count("    proves:         Much.\n    does not prove: That all is well.\n") == 2


def test_a_version_without_a_plugin_is_a_mistake(api: FakeApi, command: Command) -> None:
    code, _, err = command("readiness", "--version", "1.0.0")
    assert (code, api.asked) == (2, [])
    assert "name the PLUGIN, too" in err


def test_an_unknown_version_is_a_problem_with_a_next_step(api: FakeApi, command: Command) -> None:
    api.answers["GET", OF_TWO] = [problem(404, "plugin-unknown")]
    code, _, err = command("readiness", "p", "--version", "2.0.0")
    assert code == 1
    assert "plugin-unknown" in err
