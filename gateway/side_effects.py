"""The six side effects that previews and smokes must not have: their names, and what each means."""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType


class SideEffect(StrEnum):
    WORKER_EXECUTED = "worker_executed"
    STATE_MUTATED = "state_mutated"
    PROCESS_STARTED = "process_started"
    APPROVAL_CONSUMED = "approval_consumed"
    CONFIG_CHANGED = "config_changed"
    PHASE_PROMOTED = "phase_promoted"


MEANING: Mapping[SideEffect, str] = MappingProxyType(
    {
        SideEffect.WORKER_EXECUTED: "an execution was started, or a worker tried a model or tool step",
        SideEffect.STATE_MUTATED: "a parked job's history grew, or a row or a blob was added or changed",
        SideEffect.PROCESS_STARTED: "a process, a poller or a child of the API process came up",
        SideEffect.APPROVAL_CONSUMED: "a packet moved on, or somebody voted or decided",
        SideEffect.CONFIG_CHANGED: "a version, deployment, release, grant, key, workspace or configuration changed",
        SideEffect.PHASE_PROMOTED: "a promotion was proposed or done",
    }
)
