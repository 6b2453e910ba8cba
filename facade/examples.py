"""Examples that the OpenAPI document shows: one story, a refund that waits for its approval (api.md)."""

from typing import Any

DIGEST = "sha256:4fa0c2b7d1e83f5a96c07b12d4e8f3a1c5b79d60e2f4a8136b7c9d0e1f2a3b4c"

EVENT: dict[str, Any] = {
    "seq": 9,
    "at": "2030-01-31T12:00:03.250000Z",
    "type": "request.opened",
    "message": "Waiting for approval: Refund 1200 cents on inv_17",
    "data": {
        "request_id": "r1-4fa0c2",
        "kind": "approval",
        "tool": "refunds.create",
        "call": 0,
        "expires_at": "2030-01-31T13:00:00Z",
    },
}

PENDING: dict[str, Any] = {
    "request_id": "r1-4fa0c2",
    "kind": "approval",
    "title": "Refund 1200 cents on inv_17",
    "expires_at": "2030-01-31T13:00:00Z",
}

JOB: dict[str, Any] = {
    "job_id": "k-123",
    "status": "waiting_for_human",
    "mode": "live",
    "eligibility": "live_approved",
    "blocker": None,
    "executed": "yes",
    "recovery": "needs_person",
    "overdue": False,
    "next_action": {"code": "decide", "message": "An approver must decide r1-4fa0c2."},
    "last_event": EVENT,
    "pending": [PENDING],
    "plugin": {"name": "support-refund", "version": "1.0.0", "digest": DIGEST},
    "accepted_at": "2030-01-31T12:00:00Z",
    "started_at": "2030-01-31T12:00:00.120000Z",
    "finished_at": None,
    "deadline": "2030-01-31T13:00:00Z",
    "cancel_requested_at": None,
    "usage": {"steps": 3, "input_tokens": 0, "output_tokens": 0, "cost_usd": "0.0000"},
    "failure": None,
    "result_url": "/v1/jobs/k-123/result",
    "artifacts": [],
    "delivery": "none",
    "retry_of": None,
    "session": None,
    "labels": {"ticket": "T-17"},
    "result": None,
    "as_of": "2030-01-31T12:00:10Z",
    "source": "live",
    "events": [],
    "next_cursor": "9",
    "has_more": False,
}

REQUEST: dict[str, Any] = {
    "job_id": "k-123",
    **PENDING,
    "tool": "refunds.create",
    "effect_id": None,
    "args": {"invoice": "inv_17", "amount_cents": 1200},
    "action_digest": DIGEST,
    "opened_at": "2030-01-31T12:00:03.250000Z",
    "policy": {"groups": ["finance"], "quorum": 1, "expires_in_seconds": 86400},
    "votes": [],
    "state": "pending",
    "decided_by": [],
    "decided_at": None,
}

SESSION_OPEN: dict[str, Any] = {
    "session": "cust-9",
    "plugin": {"name": "support-refund", "version": "1.0.0", "digest": DIGEST},
    "snapshot": DIGEST,
    "created_at": "2030-01-31T12:00:00Z",
    "open_job": "k-124",
    "jobs": ["k-123", "k-124"],
    "has_more": False,
}

MESSAGES: dict[str, Any] = {
    "data": [
        {
            "seq": 1,
            "job_id": "k-123",
            "role": "user",
            "at": "2030-01-31T12:00:00Z",
            "content": {"invoice": "inv_17"},
        },
        {
            "seq": 2,
            "job_id": "k-123",
            "role": "assistant",
            "at": "2030-01-31T12:00:02Z",
            "content": "Looking at the invoice.",
        },
    ],
    "next_cursor": "bWVzc2FnZXM6MTIwMDAwMDAx",
    "has_more": False,
}
