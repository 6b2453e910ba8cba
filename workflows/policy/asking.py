"""How people are asked: words for kinds and verdicts, when a warning is due, how requests are numbered. Pure."""

from collections.abc import Mapping
from datetime import datetime, timedelta

from workflows.contract.job import OpenRequest, RequestKind, RequestState

WARN_SHARE, WARN_AT_MOST_S = 0.2, 300.0
"""The warning comes when a fifth of the window is left, and at most five minutes before the expiry."""
FIRST_ANEW, ROOM_ANEW, WAYS_ANEW = 1_000_000, 1_000, 990_000

WANTED: Mapping[RequestKind, str] = {
    "approval": "approval",
    "question": "an answer",
    "reconciliation": "somebody to find out",
}
CLOSED: Mapping[str, RequestState] = {
    "approve": "approved",
    "reject": "rejected",
    "answer": "answered",
    "settle": "settled",
    "expired": "expired",
}
SETTLED_AS: Mapping[str | None, str] = {
    "happened": "it happened",
    "did_not_happen": "it did not happen",
    "stop": "nobody can tell",
}


def warning_time(request: OpenRequest) -> datetime:
    window = (request.expires_at - request.opened_at).total_seconds()
    return request.expires_at - timedelta(seconds=min(window * WARN_SHARE, WARN_AT_MOST_S))


def renumbered(opened: int, tag: str) -> int:
    """Where the numbers of requests go on after the reset that `tag` names: in a place of that reset's own, because the
    other course of events has used those that would follow. A number has nine digits at most."""
    return FIRST_ANEW + ROOM_ANEW * (int(tag, 16) % WAYS_ANEW) + opened % ROOM_ANEW
