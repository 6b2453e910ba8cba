"""What the command line sends and shows of sessions."""

import json

from facade.examples import MESSAGES, SESSION_OPEN
from tests.unit.fake_api import FakeApi
from tests.unit.test_cli import RECEIPT, Command, answer, api, command

__all__ = ["api", "command"]


def test_submit_names_its_session(api: FakeApi, command: Command) -> None:
    answer(api, "POST", "/v1/jobs", RECEIPT, status=202)
    assert command("submit", "p", "--session", "cust-9")[0] == 0
    assert api.asked[0].json["session"] == "cust-9"


def test_a_session_is_shown_with_its_open_job(api: FakeApi, command: Command) -> None:
    answer(api, "GET", "/v1/sessions/cust-9", SESSION_OPEN)
    code, out, err = command("session", "show", "cust-9")
    assert (code, err) == (0, "")
    assert out.startswith("cust-9  busy\n")
    assert out.endswith("  job       k-123\n  job       k-124  open\n")


def test_messages_are_shown_in_order_and_the_next_page_is_named(api: FakeApi, command: Command) -> None:
    answer(api, "GET", "/v1/sessions/cust-9/messages", {**MESSAGES, "has_more": True})
    code, out, _ = command("session", "messages", "cust-9", "--limit", "2")
    assert code == 0
    assert api.asked[0].path == "/v1/sessions/cust-9/messages?limit=2"
    assert out.splitlines()[0] == "   1  2030-01-31T12:00:00Z  user  k-123"
    assert out.index('{"invoice": "inv_17"}') < out.index("Looking at the invoice.") < out.index("--after")


def test_messages_as_json_are_the_answer_and_nothing_else(api: FakeApi, command: Command) -> None:
    answer(api, "GET", "/v1/sessions/cust-9/messages", MESSAGES)
    code, out, err = command("session", "messages", "cust-9", "--json")
    assert (code, json.loads(out), err) == (0, MESSAGES, "")
