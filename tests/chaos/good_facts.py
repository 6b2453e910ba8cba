"""Facts of a small run in which everything is as promised: the ground on which a test doctors one fact."""

import json
from dataclasses import replace
from typing import Any

from tests.chaos.facts import (
    CallFacts,
    CancelFacts,
    DecisionFacts,
    EffectFacts,
    Facts,
    JobFacts,
    Json,
    QuietFacts,
    RevocationFacts,
    RunFacts,
    Told,
    VerdictFacts,
    WatchFacts,
)

PLUGIN = "sha256:" + "ab" * 32
T0 = 1_000_000_000_000
WALL = 1_800_000_000_000_000_000
DEADLINE = "2027-01-15T08:01:00Z"
"""A minute after `WALL`."""
MS = 1_000_000


def receipt(key: str) -> bytes:
    return json.dumps({"job_id": key, "deadline": DEADLINE, "plugin": {"digest": PLUGIN}, "retry_of": None}).encode()


def event(seq: int | None, type: str) -> Json:
    return {"seq": seq, "type": type, "data": {}}


def view(status: str, **more: Any) -> Json:
    return {"status": status, "pending": [], "last_event": {"type": "x"}, "failure": None, **more}


def job(key: str, status: str = "succeeded", **more: Any) -> JobFacts:
    """Accepted, replayed, ended."""
    end = f"job.{status}" if status in ("succeeded", "failed", "canceled") else "request.opened"
    told = (Told(202, receipt(key), T0), Told(200, receipt(key), T0 + MS))
    events = tuple(event(seq, type) for seq, type in enumerate(("job.queued", "job.started", end), 1))
    usual = JobFacts(key, "p", f"app-of-{key}", frozenset(), told, view(status), events, (("running", status),))
    return replace(usual, **more)


def called(number: int, of: str, tool: str, effect: str, at_ms: int, **more: Any) -> CallFacts:
    at, body = at_ms * MS, f'{{"n":{number}}}'
    key, epoch = (None, None) if effect == "read" else (f"eff_{number}", 1)
    return replace(CallFacts(number, T0 + at, WALL + at, tool, effect, body, of, key, epoch), **more)


def row(number: int, of: str, tool: str, effect: str = "write", **more: Any) -> EffectFacts:
    return replace(EffectFacts(f"eff_{number}", of, tool, effect, "confirmed", 1, "sha256:0"), **more)


def good(digest: str) -> Facts:
    """One job of each kind; `digest` is that of the approved call, as the checker works it out."""
    return Facts(
        jobs=(
            job("plain"),
            job("asked", asks=frozenset({"pay"})),
            job("kept"),
            job("stopped", "canceled"),
            job("gone", "failed"),
            job("parked", "waiting_for_human", view=view("waiting_for_human", pending=[{"request_id": "r1"}])),
        ),
        calls=(
            called(1, "plain", "look", "read", 10),
            called(2, "plain", "ship", "write", 20),
            called(3, "asked", "pay", "write", 30),
            called(4, "kept", "keep", "idempotent_write", 40),
            called(5, "kept", "keep", "idempotent_write", 50, key="eff_4", epoch=2, body='{"n":4}'),
            called(6, "stopped", "ship", "write", 60),
            called(7, "gone", "look", "read", 70),
        ),
        cancels=(
            CancelFacts("stopped", 202, T0 + 55 * MS, T0 + 65 * MS, "then", ("eff_6",)),
            CancelFacts("stopped", 200, T0 + 75 * MS, T0 + 85 * MS, "then"),
        ),
        verdicts=(VerdictFacts("asked", "r1", "approval", "ann", "approve", 200, "approve"),),
        revocations=(
            RevocationFacts("app-of-gone", T0 + 80 * MS, T0 + 90 * MS),
            RevocationFacts("ann", T0 + 80 * MS, T0 + 90 * MS, decides=True),
        ),
        watches=(
            WatchFacts("plain", "stream", ((1, "job.queued"), (2, "job.started"), (3, "job.succeeded")), 1),
            WatchFacts("gone", "poll", ((1, "job.queued"), (2, "job.started"))),
        ),
        effects=(
            row(2, "plain", "ship"),
            row(3, "asked", "pay", action_digest=digest, request="r1"),
            row(4, "kept", "keep", "idempotent_write", epoch=2),
            row(6, "stopped", "ship", state="unknown"),
        ),
        decisions=(DecisionFacts("asked", "r1", "approve", digest, ("ann",), WALL),),
        runs=tuple(
            RunFacts(key, f"run-{key}", f"run-{key}", "RUNNING" if key == "parked" else "COMPLETED")
            for key in ("plain", "asked", "kept", "stopped", "gone", "parked")
        ),
        quiet=QuietFacts({"rows of effects": 4, "history of a": 20}, {"rows of effects": 4, "history of a": 20}, 100),
    )
