"""Lets workflow code hear only what a workflow task stands for.

A query that reaches a worker by the task queue brings the whole history, with events that no workflow task has taken
up yet. The SDK's core hands those to the workflow at once, in an activation of their own, while a replay hands out all
events of one task together (measured, ADR 12). A cached run that went on so sends commands in an order in which its
history does not replay: it is stuck until its deadline.

Such an activation is known by its numbers: the history is longer, but no task began since, so the size that each task's
start records is the old one. It is left out, the query is answered as of the last task, and the run leaves the cache,
so that its next task replays the history as it is.
"""

from collections.abc import Callable
from typing import Any

from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.converter import SerializationContext, StorageDriverStoreContext
from temporalio.worker import (
    UnsandboxedWorkflowRunner,
    Worker,
    WorkflowInstance,
    WorkflowInstanceDetails,
    WorkflowRunner,
)
from temporalio.workflow import Info

Evict = Callable[[str], None]
"""By the id of the run."""


class AcceptedOnly(WorkflowRunner):
    """The runner of every worker that runs jobs; `serves` names that worker, once it is made."""

    def __init__(self) -> None:
        self._inner = UnsandboxedWorkflowRunner()
        self._worker: Worker | None = None

    def serves(self, worker: Worker) -> Worker:
        self._worker = worker
        return worker

    def prepare_workflow(self, defn: Any) -> None:
        self._inner.prepare_workflow(defn)

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        return Accepted(self._inner.create_instance(det), self.evict)

    def evict(self, run_id: str) -> None:
        """The SDK offers it to its replayer only, by this name; a worker that can not do it fails its task, loudly."""
        assert self._worker is not None
        self._worker._bridge_worker.request_workflow_eviction(run_id)  # pyright: ignore[reportPrivateUsage]


class Accepted(WorkflowInstance):
    """One cached run. `evict` is called while core waits for this very activation, so nothing comes between."""

    def __init__(self, inner: WorkflowInstance, evict: Evict) -> None:
        self._inner = inner
        self._evict = evict
        self._length = self._size = 0
        """Of the history, as of the last workflow task: events, bytes."""

    def activate(self, act: WorkflowActivation) -> WorkflowActivationCompletion:
        if all(job.HasField("query_workflow") or job.HasField("remove_from_cache") for job in act.jobs):
            return self._inner.activate(act)
        if act.history_length > self._length and 0 < act.history_size_bytes == self._size:
            self._evict(act.run_id)
            nothing = WorkflowActivationCompletion()
            nothing.successful.SetInParent()
            return nothing
        self._length, self._size = act.history_length, act.history_size_bytes
        return self._inner.activate(act)

    def get_serialization_context(self, command_info: Any) -> SerializationContext | None:
        return self._inner.get_serialization_context(command_info)

    def get_external_store_context(self, command_info: Any) -> StorageDriverStoreContext:
        return self._inner.get_external_store_context(command_info)

    def get_info(self) -> Info:
        return self._inner.get_info()

    def get_thread_id(self) -> int | None:
        return self._inner.get_thread_id()
