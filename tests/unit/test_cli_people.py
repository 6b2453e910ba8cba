"""Deciding, publishing and opening gates through the command line: what is shown, and exactly what is sent."""

from pathlib import Path
from typing import Any

import pytest

from facade.examples import REQUEST
from tests.unit.fake_api import FakeApi
from tests.unit.test_cli import DIGEST, Command, answer, api, command

__all__ = ["api", "command"]

# --- deciding


def test_decide_shows_the_action_and_decides_what_it_showed(api: FakeApi, command: Command) -> None:
    path = "/v1/jobs/k-123/requests/r1-4fa0c2"
    answer(api, "GET", path, REQUEST)
    answer(api, "POST", f"{path}/decision", {**REQUEST, "state": "approved", "decided_by": ["approver"]})
    code, out, _ = command("decide", "k-123", "r1-4fa0c2", "approve", "--reason", "fine")
    assert code == 0
    assert '"amount_cents": 1200' in out
    assert "approved by approver" in out
    digest = REQUEST["action_digest"]
    assert api.asked[1].json == {"decision": "approve", "action_digest": digest, "answer": None, "reason": "fine"}


def test_without_a_verdict_the_request_is_shown_and_nothing_is_decided(api: FakeApi, command: Command) -> None:
    answer(api, "GET", "/v1/jobs/k-123/requests/r1-4fa0c2", REQUEST)
    code, out, _ = command("decide", "k-123", "r1-4fa0c2")
    assert code == 0
    assert '"amount_cents": 1200' in out
    assert f"jobgate decide k-123 r1-4fa0c2 'approve|reject' --digest {REQUEST['action_digest']}" in out
    assert [asked.method for asked in api.asked] == ["GET"]


@pytest.mark.parametrize(("text", "sent"), [("billing", "billing"), ("7", 7), ('"7"', "7"), ('{"a": 1}', {"a": 1})])
def test_an_answer_is_json_else_text(api: FakeApi, command: Command, text: str, sent: Any) -> None:
    path = "/v1/jobs/k-123/requests/r1-4fa0c2"
    answer(api, "GET", path, {**REQUEST, "kind": "question"})
    answer(api, "POST", f"{path}/decision", {**REQUEST, "state": "answered"})
    command("decide", "k-123", "r1-4fa0c2", "answer", "--answer", text, "--digest", DIGEST)
    assert (api.asked[1].json["answer"], api.asked[1].json["action_digest"]) == (sent, DIGEST)


def test_a_question_that_takes_a_text_gets_one(api: FakeApi, command: Command) -> None:
    path = "/v1/jobs/k-123/requests/r1-4fa0c2"
    args = {"question": "Which?", "schema": {"type": "string"}}
    answer(api, "GET", path, {**REQUEST, "kind": "question", "args": args})
    answer(api, "POST", f"{path}/decision", {**REQUEST, "state": "answered"})
    command("decide", "k-123", "r1-4fa0c2", "answer", "--answer", "7")
    assert api.asked[1].json["answer"] == "7"


def test_decide_shows_who_has_voted_and_who_is_missing(api: FakeApi, command: Command) -> None:
    path, at = "/v1/jobs/k-123/requests/r1-4fa0c2", "2030-01-31T12:00:00Z"
    votes = [
        {"principal": "ann", "decision": "approve", "at": at, "counts": False},
        {"principal": "bob", "decision": "approve", "at": at, "counts": True},
    ]
    asked = {**REQUEST, "policy": {**REQUEST["policy"], "quorum": 3}, "votes": votes}
    answer(api, "GET", path, asked)
    answer(api, "POST", f"{path}/decision", {**asked, "votes": 2, "quorum": 3, "decided_by": []})
    code, out, _ = command("decide", "k-123", "r1-4fa0c2", "approve")
    assert code == 0
    assert "ann: approve, 2030-01-31T12:00:00Z  (does not count: may not decide any more)\n" in out
    assert "bob: approve, 2030-01-31T12:00:00Z\n" in out
    assert "  missing  2 of 3 people must still approve; one rejection ends it" in out
    assert "vote recorded, 2 of 3: 1 person must still approve" in out


def test_who_is_asked_to_settle_is_told_what_to_find_out_and_what_each_answer_does(
    api: FakeApi, command: Command
) -> None:
    path, key = "/v1/jobs/k-123/requests/r1-4fa0c2", "eff_0123456789abcdef"
    title = "Did refunds.create take effect? Refund 1200 cents on inv_17"
    answer(api, "GET", path, {**REQUEST, "kind": "reconciliation", "title": title, "effect_id": key})
    answer(api, "POST", f"{path}/decision", {**REQUEST, "state": "settled", "decided_by": ["approver"]})
    code, out, _ = command("decide", "k-123", "r1-4fa0c2")
    assert code == 0
    for told in (title, "its answer was lost", "happened   ", "did_not_happen  ", "stop   ", f"key      {key}"):
        assert told in out
    assert "settle --answer 'happened|did_not_happen|stop' --digest" in out
    code, out, _ = command("decide", "k-123", "r1-4fa0c2", "settle", "--answer", "happened")
    assert (code, api.asked[-1].json["decision"], api.asked[-1].json["answer"]) == (0, "settle", "happened")
    assert "settled by approver" in out


def test_an_unconfirmed_decision_is_said_to_be_one(api: FakeApi, command: Command) -> None:
    path = "/v1/jobs/k-123/requests/r1-4fa0c2"
    answer(api, "GET", path, REQUEST)
    answer(api, "POST", f"{path}/decision", REQUEST, status=202)
    code, out, _ = command("decide", "k-123", "r1-4fa0c2", "approve")
    assert code == 0
    assert "no worker has confirmed it yet" in out


# --- operators


def test_publish_sends_the_data_of_a_folder_and_nothing_else(api: FakeApi, command: Command, tmp_path: Path) -> None:
    folder = tmp_path / "plugin"
    (folder / "skills").mkdir(parents=True)
    (folder / "__pycache__").mkdir()
    for name in ("plugin.yaml", "instructions.md", "skills/a.md", "shop.py", "deployment.yaml", ".hidden"):
        (folder / name).write_text(name)
    (folder / "__pycache__" / "x.txt").write_text("x")
    answer(api, "POST", "/v1/plugins", {"name": "p", "version": "1", "digest": DIGEST}, status=201)
    code, _, _ = command("plugin", "publish", str(folder))
    assert code == 0
    assert api.asked[0].json == {"files": {name: name for name in ("instructions.md", "plugin.yaml", "skills/a.md")}}


def test_publish_names_a_file_that_is_not_text(command: Command, tmp_path: Path) -> None:
    (tmp_path / "plugin.yaml").write_text("name: p")
    (tmp_path / "logo.md").write_bytes(b"\xff\xfe")
    code, _, err = command("plugin", "publish", str(tmp_path))
    assert code == 2
    assert "logo.md" in err


def test_deploy_sends_the_file_as_json(api: FakeApi, command: Command) -> None:
    answer(api, "PUT", "/v1/plugins/support-refund/deployment", {"plugin": "p", "revision": 1, "digest": DIGEST})
    code, _, _ = command("deploy", "examples/support_refund/deployment.yaml")
    assert code == 0
    assert api.asked[0].json["connections"]["shop"]["credential"]["ref"] == "env:SHOP_TOKEN"


def test_deploy_names_the_line_of_a_broken_file(command: Command, tmp_path: Path) -> None:
    (tmp_path / "d.yaml").write_text("plugin: p\nplugin: q\n")
    code, _, err = command("deploy", str(tmp_path / "d.yaml"))
    assert code == 2
    assert "d.yaml:2" in err


def test_release_and_promotion_send_what_was_asked(api: FakeApi, command: Command) -> None:
    done = {"plugin": "p", "version": "2", "previous": "1", "revision": 3}
    answer(api, "PUT", "/v1/plugins/p/release", done)
    answer(api, "POST", "/v1/plugins/p/versions/2/promotions", {"promotion_id": "m1", "state": "done", "phase": "live"})
    assert command("release", "set", "p", "2", "--expect", "1")[0] == 0
    assert command("promote", "p", "2", "--to", "live", "--break-glass", "first run")[0] == 0
    assert [asked.json for asked in api.asked] == [
        {"version": "2", "expected_current": "1"},
        {"to": "live", "release_held": False, "break_glass": {"reason": "first run"}},
    ]
