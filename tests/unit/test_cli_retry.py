"""Retrying through the command line: what is sent, what is shown, and what is refused with what to do."""

import json

from tests.unit.fake_api import Canned, FakeApi
from tests.unit.test_cli import RECEIPT, Command, api, command, problem

__all__ = ["api", "command"]


def test_a_retry_is_asked_for_once_and_shows_its_receipt_and_how_to_watch_it(api: FakeApi, command: Command) -> None:
    unknown = problem(503, "admission-unknown", retryable=True, retry_after_s=0.01)
    api.answers["POST", "/v1/jobs/k-123/retry"] = [unknown, Canned(202, json.dumps({**RECEIPT, "retry_of": "k-123"}))]
    code, out, _ = command("retry", "k-123", "--key", "k-124", "--release", "current", "--timeout", "60")
    assert code == 0
    assert "accepted" in out
    assert "jobgate watch k-124" in out
    first, second = api.asked
    assert (first.headers["Idempotency-Key"], first.body) == (second.headers["Idempotency-Key"], second.body)
    assert first.json == {"release": "current", "timeout_seconds": 60}


def test_a_retry_that_could_repeat_a_write_is_refused_with_what_to_do(api: FakeApi, command: Command) -> None:
    api.answers["POST", "/v1/jobs/k-123/retry"] = [problem(409, "effect-unreconciled", detail="It is not known.")]
    code, out, err = command("retry", "k-123")
    assert (code, out) == (1, "")
    assert "Next: Find out what came of it, then: jobgate settle JOB EFFECT" in err


def test_what_came_of_a_write_is_sent_as_it_was_said_and_the_next_step_is_the_retry(
    api: FakeApi, command: Command
) -> None:
    told = {"tool": "pay", "state": "failed", "answer": "did_not_happen", "decided_by": ["approver"]}
    path = "/v1/jobs/k-123/effects/eff_1/settlement"
    api.answers["POST", path] = [Canned(200, json.dumps(told))]
    code, out, _ = command("settle", "k-123", "eff_1", "did_not_happen", "--reason", "Not in the shop.")
    assert code == 0
    assert "pay did not take effect, says approver" in out
    assert "jobgate retry k-123" in out
    [asked] = api.asked
    assert asked.json == {"answer": "did_not_happen", "reason": "Not in the shop."}


def test_a_word_that_is_none_is_not_sent(api: FakeApi, command: Command) -> None:
    code, _, _ = command("settle", "k-123", "eff_1", "stop")
    assert (code, api.asked) == (2, [])
