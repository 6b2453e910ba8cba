"""The status of a job as a table: (status, event) -> status. An illegal event raises and changes nothing.

Rules the table keeps: a terminal status has no way out; `canceling` leads to `canceled` only; nothing but an event
changes the status; `waiting_for_human` means that requests are open and nothing else can proceed.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from workflows.contract.errors import JobgateError
from workflows.contract.events import EventType as E
from workflows.contract.job import Status as S


class Settle(StrEnum):
    """A target that depends on what is open: `waiting_for_human` if only people can go on, else `running`."""

    SETTLE = "settle"


Target = S | Settle

_Row = Mapping[S | None, Target]
_SETTLES: _Row = {S.RUNNING: Settle.SETTLE, S.WAITING_FOR_HUMAN: Settle.SETTLE}
_SETTLES_OR_WINDS_DOWN: _Row = {**_SETTLES, S.CANCELING: S.CANCELING}
_ANY_OPEN: _Row = {**_SETTLES_OR_WINDS_DOWN, S.QUEUED: S.QUEUED}

_TABLE: dict[E, _Row] = {
    E.JOB_QUEUED: {None: S.QUEUED},
    E.JOB_HELD: {S.QUEUED: S.QUEUED},
    E.JOB_RELEASED: {S.QUEUED: S.QUEUED},
    E.JOB_STARTED: {S.QUEUED: S.RUNNING},
    E.JOB_RECOVERED: _ANY_OPEN,
    E.JOB_SUCCEEDED: {S.QUEUED: S.SUCCEEDED, S.RUNNING: S.SUCCEEDED},
    E.JOB_FAILED: {S.QUEUED: S.FAILED, S.RUNNING: S.FAILED, S.WAITING_FOR_HUMAN: S.FAILED},
    E.JOB_CANCELED: {S.CANCELING: S.CANCELED},
    E.CANCEL_REQUESTED: {S.QUEUED: S.CANCELING, S.RUNNING: S.CANCELING, S.WAITING_FOR_HUMAN: S.CANCELING},
    E.STEP_STARTED: _SETTLES,
    E.STEP_FINISHED: _SETTLES_OR_WINDS_DOWN,
    E.TOOL_STARTED: _SETTLES,
    E.TOOL_FINISHED: _SETTLES_OR_WINDS_DOWN,
    E.TOOL_REFUSED: _SETTLES,
    E.REQUEST_OPENED: _SETTLES,
    E.REQUEST_VOTED: _SETTLES,
    E.REQUEST_DECIDED: _SETTLES,
    E.REQUEST_EXPIRING: _SETTLES,
    E.REQUEST_EXPIRED: _SETTLES,
    E.REQUEST_VOIDED: _SETTLES_OR_WINDS_DOWN,
    E.DECISION_REFUSED: _ANY_OPEN,
    E.ATTEMPT_REPLACED: _SETTLES,
    E.EFFECT_UNKNOWN: _SETTLES_OR_WINDS_DOWN,
    E.EFFECT_RECONCILED: _SETTLES_OR_WINDS_DOWN,
    E.AUTHORITY_REVOKED: _ANY_OPEN,
    E.BUDGET_WARNING: _SETTLES_OR_WINDS_DOWN,
    E.ARTIFACT_PUBLISHED: _SETTLES,
}
TRANSITIONS: Mapping[E, _Row] = MappingProxyType(_TABLE)


class IllegalTransition(JobgateError):
    """An event that the table does not allow in this status."""

    def __init__(self, status: S | None, event: E) -> None:
        super().__init__("illegal_transition", f"{event} is not possible while {status or 'new'}")


def next_status(status: S | None, event: E, *, requests_open: int, steps_running: int) -> S:
    """The status after `event`; `requests_open` and `steps_running` are the counts after it."""
    target = TRANSITIONS[event].get(status)
    if target is None:
        raise IllegalTransition(status, event)
    if isinstance(target, S):
        return target
    return S.WAITING_FOR_HUMAN if requests_open and not steps_running else S.RUNNING
