"""What operators' commands send and show: grants, principals, workspaces, withdrawal, audit, usage, inspect."""

import json
from typing import Any

import pytest

from tests.unit.fake_api import Canned, FakeApi, problem
from tests.unit.test_cli import Command, answer, api, command

__all__ = ["api", "command"]

AT = "2030-01-31T12:00:00.000000Z"
GRANT: dict[str, Any] = {
    "grant_id": "grant_1",
    "principal": "billing-app",
    "actions": ["jobs:submit", "jobs:read"],
    "plugins": ["*"],
    "limits": {"max_steps": 3, "tools": ["a", "b"]},
    "expires_at": None,
    "by": "operator",
    "at": AT,
    "revoked_at": None,
}
ATTEMPT: dict[str, Any] = {
    "run_id": "run-1",
    "activity": "tool",
    "step": 3,
    "call": 0,
    "attempt": 2,
    "tool": "pay",
    "task_queue": "jobgate-default",
    "worker": "12@host",
    "scheduled_at": AT,
    "started_at": AT,
    "ended_at": None,
    "outcome": "running",
    "code": None,
}
INSPECTION: dict[str, Any] = {
    "job_id": "k-1",
    "workspace": "demo",
    "status": "running",
    "executed": "yes",
    "mode": "live",
    "overdue": False,
    "failure": None,
    "principal": "app",
    "submitted_by": "app",
    "initiator": {"kind": "user", "id": "cust_9"},
    "credential": "key_7",
    "workload": {"plugin": "p", "version": "1.0.0", "digest": "sha256:" + "0" * 64, "snapshot": "s", "model": None},
    "session": None,
    "retry_of": None,
    "accepted_at": AT,
    "deadline": AT,
    "finished_at": None,
    "authority": {"expires_at": AT, "revoked_at": AT, "revoked_reason": "The grants were revoked."},
    "attempts": [ATTEMPT, {**ATTEMPT, "activity": "read_decision", "step": None, "attempt": None, "tool": None}],
    "attempts_complete": False,
    "lanes": [
        {"lane": "default", "task_queue": "q", "pollers": [{"worker": "12@host", "seen_at": AT}]},
        {"lane": None, "task_queue": "odd", "pollers": []},
    ],
    "effects": [
        {
            "effect_id": "eff_1",
            "tool": "pay",
            "state": "sent",
            "epoch": 1,
            "sent_at": AT,
            "finished_at": None,
            "request_id": "r1-4fa0c2",
        }
    ],
    "pending": [],
    "decisions": [
        {
            "request_id": "r1-4fa0c2",
            "decision": "approve",
            "decided_at": AT,
            "votes": [{"principal": "approver", "decision": "approve", "at": AT}],
        }
    ],
    "stop": {"requested_at": AT, "by": "app"},
    "engine": {"workflow_id": "demo.k-1", "run_id": "run-1", "status": "running", "history_length": 31},
    "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736",
    "temporal_url": "http://ui/x",
}


def test_grant_add_sends_names_and_limits_as_their_kind(api: FakeApi, command: Command) -> None:
    answer(api, "POST", "/v1/grants", GRANT, status=201)
    options = ("--limit", "max_steps=3", "--limit", "max_cost_usd=1", "--limit", "tools=a,b", "--expires", AT)
    code, out, err = command("grant", "add", "billing-app", "--actions", "jobs:submit, *", "--plugins", "p,q", *options)
    assert (code, err) == (0, "")
    assert api.asked[0].json == {
        "principal": "billing-app",
        "actions": ["jobs:submit", "*"],
        "plugins": ["p", "q"],
        "limits": {"max_steps": 3, "max_cost_usd": "1", "tools": ["a", "b"]},
        "expires_at": AT,
    }
    assert "max_steps=3,tools=a+b" in out
    assert "jobgate grant revoke grant_1" in out


def test_grant_list_leaves_out_what_is_over_unless_asked(api: FakeApi, command: Command) -> None:
    rows = [
        GRANT,
        {**GRANT, "grant_id": "gone", "revoked_at": AT},
        {**GRANT, "grant_id": "past", "expires_at": "2020-01-01T00:00:00.000000Z"},
        {**GRANT, "grant_id": "soon", "expires_at": "2999-01-01T00:00:00.000000Z"},
    ]
    answer(api, "GET", "/v1/grants", {"data": rows})
    assert [line.split()[0] for line in command("grant", "list")[1].splitlines()] == ["GRANT", "grant_1", "soon"]
    shown = command("grant", "list", "--all")[1].splitlines()
    assert [line.split()[0] for line in shown] == ["GRANT", "grant_1", "gone", "past", "soon"]
    assert "revoked 2030-01-31T12:00:00Z" in shown[2]
    assert "expired 2020-01-01T00:00:00Z" in shown[3]


def test_taking_back_names_what_and_when(api: FakeApi, command: Command) -> None:
    gone = {**GRANT, "revoked_at": AT}
    answer(api, "DELETE", "/v1/grants/grant_1", gone)
    assert command("grant", "revoke", "grant_1")[1].startswith(f"grant_1  of billing-app, revoked {AT}\n")
    keys = [{"key_id": "key_7", "revoked_at": AT}]
    answer(api, "DELETE", "/v1/principals/a%2Fb", {"principal": "a/b", "grants": [gone], "api_keys": keys})
    _, out, _ = command("principal", "revoke", "a/b")
    assert out.splitlines()[0] == "a/b  has nothing here any more: 1 grant and 1 API key revoked"
    assert [line.split()[-3] for line in out.splitlines()[1:]] == ["grant_1", "key_7"]


def test_a_workspace_is_made_with_its_admin(api: FakeApi, command: Command) -> None:
    made = {"name": "acme", "admin": "dana", "grant_id": "grant_9", "actions": ["grants:write"]}
    answer(api, "POST", "/v1/workspaces", made, status=201)
    _, out, _ = command("workspace", "create", "acme", "--admin", "dana")
    assert api.asked[0].json == {"name": "acme", "admin": "dana"}
    assert out.startswith("acme  made; dana runs it\n")


def test_withdraw_sends_the_reason_and_history_shows_releases(api: FakeApi, command: Command) -> None:
    made = {"name": "p", "version": "1.0.0", "withdrawn_at": AT, "withdrawn_reason": "overpays"}
    answer(api, "POST", "/v1/plugins/p/versions/1.0.0/withdrawal", made)
    _, out, _ = command("plugin", "withdraw", "p", "1.0.0", "--reason", "overpays")
    assert api.asked[0].json == {"reason": "overpays"}
    assert out.startswith("p 1.0.0  withdrawn 2030-01-31T12:00:00Z: overpays\n")
    release = {"plugin": "p", "version": "1.1.0", "previous": "1.0.0", "revision": 2, "by": "operator", "at": AT}
    answer(api, "GET", "/v1/plugins/p/releases", {"data": [release]}, {"data": []})
    row = command("release", "history", "p")[1].splitlines()[1]
    assert row.split() == ["2", "1.1.0", "1.0.0", "2030-01-31T12:00:00Z", "operator"]
    assert "jobgate release set p" in command("release", "history", "p")[1]


def test_audit_shows_a_line_each_and_reads_on_when_asked(api: FakeApi, command: Command) -> None:
    line = {"at": AT, "workspace": "demo", "actor": "operator", "action": "release.set", "subject": "p"}
    pages: list[Any] = [
        {"data": [{**line, "detail": {"version": "1.1.0"}}], "next_cursor": "c1", "has_more": True},
        {
            "data": [{**line, "workspace": None, "detail": {"reason": "first run", "break_glass": True}}],
            "next_cursor": "c2",
            "has_more": False,
        },
    ]
    answer(api, "GET", "/v1/audit", *pages)
    assert command("audit", "--all")[1].splitlines() == [
        "2030-01-31T12:00:00Z  operator  release.set  p  version=1.1.0",
        '2030-01-31T12:00:00Z  operator  release.set (runtime)  p  reason="first run" break_glass=true',
    ]
    assert [asked.path for asked in api.asked] == ["/v1/audit?limit=100", "/v1/audit?after=c1&limit=100"]
    answer(api, "GET", "/v1/audit", pages[0])
    assert command("audit")[1].splitlines()[-1] == "More: jobgate audit --after c1"


def test_usage_is_a_row_a_principal(api: FakeApi, command: Command) -> None:
    row = {"principal": "app", "jobs": 2, "steps": 5, "input_tokens": 7, "output_tokens": 9, "cost_usd": "0.2500"}
    answer(api, "GET", "/v1/usage", {"data": [row], "from": AT, "to": AT}, {"data": [], "from": AT, "to": AT})
    _, out, _ = command("usage", "--from", AT)
    assert out.splitlines()[-1].split() == ["app", "2", "5", "7", "9", "0.2500"]
    assert command("usage")[1].splitlines()[-1] == "Nothing was spent."


def test_inspect_tells_who_where_and_what_was_sent(api: FakeApi, command: Command) -> None:
    answer(api, "GET", "/v1/operator/jobs/k-1", INSPECTION)
    code, out, _ = command("inspect", "k-1")
    assert code == 0
    for told in (
        "app, submitted by app with API key key_7",
        "user cust_9",
        f"revoked {AT}: The grants were revoked.",
        "12@host at 12:00:00.000",
        "unknown (odd): nobody has asked for work lately",
        "attempts (older ones are left out)",
        "r1-4fa0c2  approve",
        "approver approve",
        "eff_1",
        "4bf92f3577b34da6a3ce929d0e0e4736",
        "http://ui/x",
    ):
        assert told in out


@pytest.mark.parametrize(
    ("arguments", "method", "path", "body"),
    [
        (("grant", "list"), "GET", "/v1/grants", '{"data":  [], "ü": 1}'),
        (("grant", "revoke", "g"), "DELETE", "/v1/grants/g", json.dumps({**GRANT, "revoked_at": AT})),
        (("inspect", "k-1"), "GET", "/v1/operator/jobs/k-1", '{"job_id":  "k-1"}'),
        (("audit",), "GET", "/v1/audit", '{"data":  [], "next_cursor": null, "has_more": false}'),
        (("usage",), "GET", "/v1/usage", '{"data":  [], "from": "", "to": ""}'),
        (("release", "history", "p"), "GET", "/v1/plugins/p/releases", '{"data":  []}'),
    ],
)
def test_json_is_the_answer_and_nothing_else(
    api: FakeApi, command: Command, arguments: tuple[str, ...], method: str, path: str, body: str
) -> None:
    api.answers[method, path] = [Canned(200, body)]
    assert command(*arguments, "--json") == (0, body + "\n", "")


def test_a_refusal_is_1_and_says_what_to_do(api: FakeApi, command: Command) -> None:
    api.answers["DELETE", "/v1/grants/g"] = [problem(404, "not-found", detail="There is no such grant.")]
    code, out, err = command("grant", "revoke", "g")
    assert (code, out) == (1, "")
    assert "There is no such grant." in err


@pytest.mark.parametrize(
    "arguments",
    [
        ("grant", "add", "p"),
        ("grant", "add", "p", "--actions", "a,,b", "--plugins", "*"),
        ("grant", "add", "p", "--actions", "a", "--plugins", "*", "--limit", "max_steps"),
        ("grant", "revoke", ".."),
        ("workspace", "create", "w"),
        ("plugin", "withdraw", "p", "1.0.0"),
        ("audit", "--limit", "501"),
        ("inspect",),
    ],
)
def test_usage_errors_are_2_and_send_nothing(api: FakeApi, command: Command, arguments: tuple[str, ...]) -> None:
    code, out, err = command(*arguments)
    assert (code, out) == (2, "")
    assert "--help" in err
    assert api.asked == []


@pytest.mark.parametrize(
    "name",
    [
        *("grant add", "grant list", "grant revoke", "principal revoke", "workspace create", "plugin withdraw"),
        *("release history", "inspect", "audit", "usage"),
    ],
)
def test_every_command_teaches_by_example(command: Command, name: str) -> None:
    code, out, _ = command(*name.split(), "--help")
    assert code == 0
    assert f"jobgate {name}" in out.partition("Examples:")[2]
    assert "--data" in out
    assert "--json" in out
