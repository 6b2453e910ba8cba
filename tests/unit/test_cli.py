"""What the command line sends, shows and exits with, against an API that answers what a test says."""

import json
import socket
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from facade.examples import JOB
from gateway.cli import run
from gateway.cli.render import shown
from tests.unit.fake_api import Canned, FakeApi, problem

DIGEST = "sha256:" + "0" * 64
RECEIPT: dict[str, Any] = {
    "job_id": "k-1",
    "status": "queued",
    "mode": "live",
    "eligibility": "live_approved",
    "blocker": None,
    "executed": "no",
    "accepted_at": "2030-01-31T12:00:00Z",
    "deadline": "2030-01-31T13:00:00Z",
    "plugin": {"name": "support-refund", "version": "1.0.0", "digest": DIGEST},
}
ENDED: dict[str, Any] = {**JOB, "status": "succeeded", "pending": [], "result": {"message": "Done."}}

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def api() -> Generator[FakeApi]:
    with FakeApi() as fake:
        yield fake


@pytest.fixture
def command(
    api: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Command:
    """`command("show", "k-1")` -> exit code, standard output, standard error."""
    monkeypatch.setenv("JOBGATE_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("JOBGATE_URL", api.url)
    monkeypatch.setenv("JOBGATE_TOKEN", "t0ken")

    def call(*arguments: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = run(arguments)
        said = capfd.readouterr()
        return code, said.out, said.err

    return call


def answer(api: FakeApi, method: str, path: str, *bodies: Any, status: int = 200) -> None:
    api.answers[method, path] = [Canned(status, json.dumps(body)) for body in bodies]


# --- submit


def test_submit_sends_what_was_asked_under_the_key_and_prints_the_receipt(api: FakeApi, command: Command) -> None:
    answer(api, "POST", "/v1/jobs", RECEIPT, status=202)
    options = ("--key", "k-1", "--input", '{"invoice": "inv_17"}', "--timeout", "60", "--label", "a=b=c")
    code, out, err = command("submit", "support-refund", *options, "--max-cost-usd", "0.50")
    assert (code, err) == (0, "")
    (asked,) = api.asked
    assert asked.headers["Idempotency-Key"] == "k-1"
    assert asked.headers["Authorization"] == "Bearer t0ken"
    assert asked.json == {
        "plugin": "support-refund",
        "mode": "live",
        "timeout_seconds": 60,
        "on_blocked": "hold",
        "labels": {"a": "b=c"},
        "budget": {"max_cost_usd": "0.50"},
        "input": {"invoice": "inv_17"},
    }
    assert out.startswith("k-1  accepted\n")


def test_json_is_the_answer_to_the_byte_and_nothing_else(api: FakeApi, command: Command) -> None:
    body = '{"job_id":  "k-1", "text": "\\u00fc ü"}'
    api.answers["POST", "/v1/jobs"] = [Canned(202, body)]
    assert command("submit", "p", "--json") == (0, body + "\n", "")


def test_the_input_goes_out_as_it_was_written(api: FakeApi, command: Command, tmp_path: Path) -> None:
    answer(api, "POST", "/v1/jobs", RECEIPT)
    written = '{"n": 0.1000000000000000055, "n": 1.0}'
    (tmp_path / "input.json").write_text(written)
    command("submit", "p", "--input", f"@{tmp_path / 'input.json'}")
    assert api.asked[0].body.endswith(f'"input": {written}}}')


@pytest.mark.parametrize("bad", ["{", "@/no/such/file", '{"a": }', "[" * 100_000])
def test_an_input_that_is_not_json_is_a_usage_error_and_sends_nothing(api: FakeApi, command: Command, bad: str) -> None:
    code, out, err = command("submit", "p", "--input", bad)
    assert (code, out) == (2, "")
    assert "--input" in err
    assert api.asked == []


def test_an_open_admission_is_asked_again_with_the_same_key(api: FakeApi, command: Command) -> None:
    unknown = problem(503, "admission-unknown", retryable=True, retry_after_s=0.01)
    api.answers["POST", "/v1/jobs"] = [unknown, Canned(202, json.dumps(RECEIPT))]
    code, _, _ = command("submit", "p")
    assert code == 0
    first, second = api.asked
    assert first.headers["Idempotency-Key"] == second.headers["Idempotency-Key"]
    assert first.body == second.body


def test_a_replay_says_that_it_is_one(api: FakeApi, command: Command) -> None:
    api.answers["POST", "/v1/jobs"] = [Canned(200, json.dumps(RECEIPT), headers={"Idempotent-Replayed": "true"})]
    assert "replayed" in command("submit", "p", "--key", "k-1")[1]


# --- refusals, unreachable, usage, crash


def test_a_refusal_is_title_detail_and_the_next_step_on_standard_error(api: FakeApi, command: Command) -> None:
    members = {"detail": "The gate is closed.", "not_yet": "Not yet: nothing ran.", "executed": "no"}
    api.answers["POST", "/v1/jobs"] = [problem(409, "blocked", blocker="phase_blocked_noop", **members)]
    code, out, err = command("submit", "p")
    assert (code, out) == (1, "")
    lines = [line.strip() for line in err.splitlines()]
    assert lines[:3] == ["Title of blocked (blocked)", "The gate is closed.", "Not yet: nothing ran."]
    assert "blocker phase_blocked_noop, executed no" in lines
    assert lines[-1].startswith("Next: An operator climbs the next rung: jobgate readiness")


def test_a_gate_that_stays_shut_says_each_missing_thing_once_and_who_knows_more(api: FakeApi, command: Command) -> None:
    missing = ["a dry run", "a simulation"]
    detail = "Not yet: a dry run; a simulation."
    answer = problem(409, "gate-not-met", detail=detail, not_yet=detail, missing=missing)
    api.answers["POST", "/v1/plugins/p/versions/1/promotions"] = [answer]
    code, out, err = command("promote", "p", "1", "--to", "live_canary")
    assert (code, out) == (1, "")
    lines = [line.strip() for line in err.splitlines()]
    assert lines[:3] == ["Title of gate-not-met (gate-not-met)", "missing: a dry run", "missing: a simulation"]
    assert lines[-1].startswith("Next: jobgate readiness PLUGIN")


def test_a_phase_that_is_none_is_wrong_usage(api: FakeApi, command: Command) -> None:
    assert command("promote", "p", "1", "--to", "up")[0] == 2
    assert api.asked == []


def test_a_refusal_as_json_is_the_problem_document(api: FakeApi, command: Command) -> None:
    refusal = problem(404, "not-found")
    api.answers["GET", "/v1/jobs/k-1"] = [refusal]
    code, out, _ = command("show", "k-1", "--json")
    assert (code, out) == (1, refusal.body + "\n")


def test_an_answer_that_is_no_problem_document_is_a_plain_failure(api: FakeApi, command: Command) -> None:
    api.answers["GET", "/v1/jobs/k-1"] = [Canned(502, "<html>", "text/html")]
    code, out, err = command("show", "k-1", "--json")
    assert (code, out) == (1, "")
    assert "502" in err


def test_nobody_listening_is_3(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    monkeypatch.setenv("JOBGATE_URL", f"http://127.0.0.1:{port}")
    code, out, err = command("show", "k-1")
    assert (code, out) == (3, "")
    assert str(port) in err


def test_no_url_and_no_dev_stack_is_3_and_says_what_to_do(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JOBGATE_URL")
    code, _, err = command("requests")
    assert code == 3
    assert "jobgate dev" in err


@pytest.mark.parametrize(
    "arguments",
    [
        ("nonsense",),
        ("submit",),
        ("submit", "p", "--mode", "maybe"),
        ("submit", "p", "--label", "x"),
        ("show", ".."),
        ("decide", "k-1", "r1-abc", "perhaps"),
        ("decide", "k-1", "r1-abc", "answer"),
        ("promote", "p", "1"),
        ("promote", "p", "--to", "live"),
        ("promote", "p", "1", "--to", "top"),
        ("promote", "p", "1", "--runtime", "--to", "live"),
        ("demote", "p", "1", "--to", "live"),
        ("token", "no spaces"),
        ("dev", "--api-port", "70000"),
    ],
)
def test_usage_errors_are_2_say_where_help_is_and_send_nothing(
    api: FakeApi, command: Command, arguments: tuple[str, ...]
) -> None:
    code, out, err = command(*arguments)
    assert (code, out) == (2, "")
    assert "--help" in err
    assert api.asked == []


def test_a_misspelt_setting_is_2(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOBGATE_TOKN", "secret")
    code, _, err = command("show", "k-1")
    assert code == 2
    assert "JOBGATE_TOKN" in err
    assert "secret" not in err


def test_a_crash_is_one_line_without_the_text_of_the_error(api: FakeApi, command: Command) -> None:
    api.answers["POST", "/v1/jobs/k-1/cancel"] = [Canned(200, '{"odd": "answer"}')]
    code, out, err = command("cancel", "k-1")
    assert (code, out) == (1, "")
    (line,) = err.splitlines()
    assert "KeyError" in line
    assert "odd" not in line


# --- reading


def test_show_says_where_the_job_is_and_how_to_decide(api: FakeApi, command: Command) -> None:
    answer(api, "GET", "/v1/jobs/k-123", JOB)
    code, out, _ = command("show", "k-123")
    assert code == 0
    assert out.startswith("k-123  waiting_for_human\n")
    assert "jobgate decide k-123 r1-4fa0c2 'approve|reject'" in out
    assert api.asked[0].path == "/v1/jobs/k-123"


def test_show_events_reads_every_page(api: FakeApi, command: Command) -> None:
    event = JOB["last_event"]
    pages = [
        {**ENDED, "events": [{**event, "message": text}], "next_cursor": cursor, "has_more": more}
        for text, cursor, more in (("one", "1", True), ("two", "2", False))
    ]
    answer(api, "GET", "/v1/jobs/k-123", *pages)
    _, out, _ = command("show", "k-123", "--events")
    assert [line.split()[-1] for line in out.splitlines() if "request.opened" in line][-2:] == ["one", "two"]
    assert [asked.path.partition("?")[2] for asked in api.asked] == ["after=0&limit=500", "after=1&limit=500"]


def test_list_shows_a_row_per_job_and_the_next_page(api: FakeApi, command: Command) -> None:
    answer(api, "GET", "/v1/jobs", {"data": [JOB], "next_cursor": "c2", "has_more": True})
    _, out, _ = command("list", "--status", "running")
    assert [line.split()[0] for line in out.splitlines()] == ["JOB", "k-123", "More:"]
    assert out.splitlines()[-1].endswith("--after c2")
    assert api.asked[0].path == "/v1/jobs?status=running&limit=20"


def test_outside_text_can_not_pretend_to_be_something_else() -> None:
    assert shown("pay \u202eevil\x1b[31m ü") == "pay \\u202eevil\\u001b[31m ü"


@pytest.mark.parametrize("alone", [("--workspace", "acme"), ("--admin", "dana")])
def test_setup_takes_a_workspace_and_its_admin_or_neither(command: Command, alone: tuple[str, str]) -> None:
    code, out, err = command("setup", *alone)
    assert (code, out) == (2, "")
    assert "go together" in err


# --- help


@pytest.mark.parametrize(
    "name",
    [
        *("demo", "dev", "api", "worker", "setup", "token", "submit", "show", "watch", "list", "cancel"),
        *("requests", "decide", "plugin publish", "plugin versions", "deploy", "release set", "promote"),
        *("approve", "demote", "packet create", "packet approve", "packet show", "packet revoke"),
        *("preview", "simulate", "retry"),
    ],
)
def test_every_command_teaches_by_example_and_takes_data_and_json(command: Command, name: str) -> None:
    code, out, _ = command(*name.split(), "--help")
    assert code == 0
    assert f"jobgate {name}" in out.partition("Examples:")[2]
    assert "--data" in out
    assert "--json" in out
