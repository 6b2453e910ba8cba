"""Each rule of the leak test catches what it is for, names it without showing it, and lets the honest answer pass."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.rig.answers import Answer
from tests.rig.leak_rules import Rules
from tests.rig.leak_words import Live

DOCUMENT = Path(__file__).parents[2] / "docs" / "openapi.json"
RULES = Rules(json.loads(DOCUMENT.read_text(encoding="utf-8")))
SECRET = "canary-tool-7f3e1c"
LIVE = Live(
    places={"forge-3": "the host's name", "jobgate-default": "task queue", "/srv/x/data": "data folder"},
    secrets={SECRET: "TOOL_TOKEN"},
    signatures={b"s1gn" * 12},
)
TOKEN = "eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJhcHAifQ.sig"
DIGEST = "sha256:4fa0c2b7d1e83f5a96c07b12d4e8f3a1c5b79d60e2f4a8136b7c9d0e1f2a3b4c"
AT = "2030-01-31T12:00:00Z"
EVENT: Mapping[str, Any] = {
    "seq": 2,
    "at": AT,
    "type": "job.failed",
    "message": "The model did not answer.",
    "data": {"code": "model_failed"},
}
RECEIPT: Mapping[str, Any] = {
    "job_id": "k-123",
    "status": "queued",
    "mode": "live",
    "eligibility": "live_approved",
    "blocker": None,
    "executed": "no",
    "accepted_at": AT,
    "deadline": AT,
    "fingerprint": DIGEST,
    "plugin": {"name": "support-refund", "version": "1.0.0", "digest": DIGEST},
    "snapshot": DIGEST,
    "session": None,
    "retry_of": None,
}
PROBLEM: Mapping[str, Any] = {
    "type": "urn:jobgate:problem:not-found",
    "title": "There is nothing here",
    "status": 404,
    "detail": "There is no such job.",
    "instance": "4c1f9d2e8b7a4f60a1d3c5e7f9b0d2c4",
    "code": "not-found",
    "retryable": False,
}
JOB = "GET /v1/jobs/{job_id} 404"
SUBMIT = "POST /v1/jobs 202"
STREAM = "GET /v1/jobs/{job_id}/events 200"


def judged(method: str, path: str, status: int, body: Any, media: str = "", **headers: str) -> list[str]:
    media = media or ("application/json" if status < 400 else "application/problem+json")
    sent = {"Content-Type": media, "X-Request-Id": "r-1", "traceparent": "00-1-1-01", **headers}
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    named = tuple((name.replace("_", "-"), value) for name, value in sent.items())
    found = RULES.broken(Answer(method, path, status, named, text), LIVE)
    assert not any(SECRET in line or TOKEN in line for line in found)
    return found


def submitted(**changed: Any) -> list[str]:
    return judged("POST", "/v1/jobs", 202, {**RECEIPT, **changed})


def refused(**changed: Any) -> list[str]:
    return judged("GET", "/v1/jobs/k-123", 404, {**PROBLEM, **changed})


def streamed(**changed: Any) -> list[str]:
    frame = f"id: 2\nevent: job.failed\ndata: {json.dumps({**EVENT, **changed})}\n\n"
    whole = f"retry: 2000\n\n: ping\n\n{frame}data: {{cut".encode()
    return judged("GET", "/v1/jobs/k-123/events", 200, whole, "text/event-stream; charset=utf-8")


def test_honest_answers_pass() -> None:
    assert submitted() == refused() == streamed() == []
    assert judged("GET", "/v1/nowhere", 404, PROBLEM) == []
    assert judged("PATCH", "/v1/jobs", 405, {**PROBLEM, "status": 405, "code": "method-not-allowed"}, Allow="GET") == []


def test_a_member_that_the_schema_does_not_name_is_caught_at_any_depth() -> None:
    assert submitted(shard=3) == [f"{SUBMIT} /shard: not in the schema"]
    plugin = {**RECEIPT["plugin"], "cached": True}
    assert submitted(plugin=plugin) == [f"{SUBMIT} /plugin/cached: not in the schema"]
    assert refused(trace="x") == [f"{JOB} /trace: not in the schema"]
    assert refused(receipt={**RECEIPT, "shard": 3}) == [f"{JOB} /receipt/shard: not in the schema"]
    assert submitted(**{f"{SECRET}-2": 1}) == [f"{SUBMIT} /*: not in the schema", f"{SUBMIT} /: TOOL_TOKEN"]


def test_a_member_that_is_missing_or_of_another_kind_is_caught() -> None:
    assert submitted(status="parked") == [f"{SUBMIT} /status: schema keyword enum"]
    assert submitted(job_id=7) == [f"{SUBMIT} /job_id: schema keyword type"]
    assert judged("POST", "/v1/jobs", 202, {}) == [f"{SUBMIT} /: schema keyword required"]


def test_an_event_holds_the_data_of_its_type_and_no_other() -> None:
    assert streamed(data={"code": "internal", "cause": "x"}) == [f"{STREAM} /data: schema keyword propertyNames"]
    assert streamed(type="job.canceled") == [f"{STREAM} /data: schema keyword propertyNames"]
    assert streamed(attempt=1) == [f"{STREAM} /attempt: not in the schema"]
    page = {"data": {"code": "internal", "cause": "x"}}
    found = judged("GET", "/v1/jobs/k-123", 200, {"last_event": {**EVENT, **page}})
    assert "GET /v1/jobs/{job_id} 200 /last_event/data: schema keyword propertyNames" in found


def test_what_no_operation_declares_is_caught() -> None:
    assert judged("POST", "/v1/jobs", 204, b"", "") == ["POST /v1/jobs 204 /: undocumented status"]
    assert judged("GET", "/v1/nowhere", 200, {}) == ["GET (no such operation) 200 /: undocumented content"]
    text = judged("GET", "/v1/jobs/k-123", 404, b"Not Found", "text/plain")
    assert text == [f"{JOB} /: undocumented content"]
    assert judged("GET", "/v1/jobs/k-123", 404, b"{", "application/problem+json") == [f"{JOB} /: not JSON"]
    named = judged("GET", "/v1/jobs/k-123", 404, PROBLEM, Server="x", X_Powered_By="y")
    assert named == [f"{JOB} header server: undocumented header", f"{JOB} header x-powered-by: undocumented header"]


@pytest.mark.parametrize(
    ("said", "rule"),
    [
        ("No worker polls.", "worker"),
        ("It was worker_lost.", "worker"),
        ("The task_queue is empty.", "task queue"),
        ("Run id unknown.", "run id"),
        ("Another build id.", "build id"),
        ("No lane fits.", "lane"),
        ("The route is closed.", "route"),
        ("The host has no address.", "host"),
        ("Traceback (most recent call last)", "stack"),
        ("Temporal does not answer.", "engine"),
        ("sqlalchemy says no.", "library"),
        ("OperationalError: locked", "exception name"),
        ("See /home/x/log.", "file path"),
        ("Held by 4711@elsewhere.", "worker identity"),
        ("Another demo.k-123 runs.", "workflow id"),
        ("Seen at forge-3.", "the host's name"),
        ("Waits on jobgate-default.", "task queue"),
        (f"It was {SECRET}.", "TOOL_TOKEN"),
        (f"It was {TOKEN}.", "signed token"),
        (f"It was {'s1gn' * 12}.", "signature of a token"),
        ("It was jgk_0123456789ab_abcdefghijk.", "API key"),
        (f"It was {'aB3-' * 16}.", "callback token"),
    ],
)
def test_internal_words_and_live_values_are_caught_each_by_its_own_rule(said: str, rule: str) -> None:
    for found in (refused(detail=said), streamed(message=said)):
        assert [line.rpartition(": ")[2] for line in found] == [rule]


def test_values_in_headers_are_caught() -> None:
    receipt = judged("POST", "/v1/jobs", 202, RECEIPT, Location=f"/v1/jobs/{SECRET}")
    assert receipt == [f"{SUBMIT} /: TOOL_TOKEN"]


def test_what_people_and_tools_said_may_hold_words_but_no_live_value() -> None:
    message = {"seq": 1, "job_id": "k-1", "role": "user", "at": AT, "content": "Ask the worker at the host's route."}
    page: dict[str, Any] = {"data": [message], "next_cursor": "c", "has_more": False}
    assert judged("GET", "/v1/sessions/s/messages", 200, page) == []
    message["content"] = f"It was {SECRET} on forge-3."
    found = judged("GET", "/v1/sessions/s/messages", 200, page)
    assert [line.rpartition(": ")[2] for line in found] == ["TOOL_TOKEN", "the host's name"]


def test_a_result_is_the_jobs_own_and_a_name_may_hold_a_slash() -> None:
    assert judged("GET", "/v1/jobs/k-123/result", 200, {"at": "the host", "worker": 1}) == []
    found = judged("GET", "/v1/jobs/k-123/result", 200, {"at": SECRET})
    assert found == ["GET /v1/jobs/{job_id}/result 200 /: TOOL_TOKEN"]
    odd = judged("GET", "/v1/jobs/a%2Fb", 404, {**PROBLEM, "shard": 3})
    assert odd == [f"{JOB} /shard: not in the schema"]


def test_operators_may_see_the_engine_but_no_secret() -> None:
    body = {**PROBLEM, "detail": "The worker of jobgate-default is 7@forge-3."}
    assert judged("GET", "/v1/operator/jobs/k-123", 404, body) == []
    leaked = judged("GET", "/v1/operator/jobs/k-123", 404, {**PROBLEM, "detail": SECRET})
    assert leaked == ["GET /v1/operator/jobs/{job_id} 404 /: TOOL_TOKEN"]


def test_a_new_key_is_shown_by_the_one_answer_that_makes_it() -> None:
    key = "jgk_0123456789ab_abcdefghijk"
    made: dict[str, Any] = {"key_id": "0123456789ab", "key": key, "principal": "p", "scopes": [], "groups": []}
    assert judged("POST", "/v1/api-keys", 201, {**made, "expires_at": None}, Cache_Control="no-store") == []
    listed = judged("GET", "/v1/api-keys", 200, {"data": [made]})
    assert any(line.endswith("/: API key") for line in listed)
