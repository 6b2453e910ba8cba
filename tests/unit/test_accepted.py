"""Which activations a run hears: told by the numbers that core sends with them."""

from typing import Any

import pytest
from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion

from activities.accepted import Accepted


class Inner:
    """Where a real instance would run the workflow."""

    def __init__(self) -> None:
        self.heard: list[WorkflowActivation] = []

    def activate(self, act: WorkflowActivation) -> WorkflowActivationCompletion:
        self.heard.append(act)
        return WorkflowActivationCompletion(run_id="inner")


class Run:
    def __init__(self) -> None:
        self.inner, self.evicted = Inner(), list[str]()
        inner: Any = self.inner
        self.instance = Accepted(inner, self.evicted.append)

    def hears(self, job: str, length: int, size: int, seconds: int = 0) -> bool:
        act = WorkflowActivation(run_id="r", history_length=length, history_size_bytes=size)
        act.timestamp.FromSeconds(seconds)
        getattr(act.jobs.add(), job).SetInParent()
        before = len(self.inner.heard)
        told = self.instance.activate(act)
        heard = len(self.inner.heard) > before
        assert heard or (told.HasField("successful") and not told.successful.commands)
        return heard


def test_what_no_task_stands_for_is_left_out_and_the_run_leaves_the_cache() -> None:
    run = Run()
    assert run.hears("initialize_workflow", 3, 400)
    assert not run.hears("resolve_activity", 9, 400)
    assert run.hears("query_workflow", 9, 400)
    assert run.evicted == ["r"]
    assert not run.hears("signal_workflow", 11, 400)  # one more query, before the first one's eviction
    assert run.hears("remove_from_cache", 11, 400)


@pytest.mark.parametrize(
    ("job", "length", "size", "seconds"),
    [
        ("resolve_activity", 10, 900, 2),
        ("resolve_activity", 10, 900, 1),  # the engine's clock was set back: core holds the time
        ("resolve_activity", 3, 400, 1),  # a second activation of one task: an activity that the workflow canceled
        ("query_workflow", 9, 400, 1),
        ("remove_from_cache", 9, 400, 1),
    ],
)
def test_whatever_a_task_stands_for_is_heard(job: str, length: int, size: int, seconds: int) -> None:
    run = Run()
    assert run.hears("initialize_workflow", 3, 400, 1)
    assert run.hears(job, length, size, seconds)
    assert run.evicted == []


def test_an_engine_that_records_no_sizes_is_believed() -> None:
    run = Run()
    assert run.hears("initialize_workflow", 3, 0)
    assert run.hears("resolve_activity", 9, 0)
