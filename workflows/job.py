"""JobWorkflow: what Temporal sees of a job. It reads its input, hands it to the loop, and never wedges a task.

Dynamic, so that nothing is decoded before our code runs: a start by hand under any name and with any input ends at once
with `input_rejected`, and a signal of any name and shape is an event, where typed ones would fail the task for ever.
"""

from collections.abc import Sequence
from typing import ClassVar

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from workflows.contract.errors import FailureCode, JobgateError
from workflows.contract.job import EndRecord, JobStart
from workflows.contract.steps import VIEW_QUERY, WORKFLOW_TYPE, ViewInput, ViewOutput
from workflows.loop import Loop


@workflow.defn(dynamic=True, failure_exception_types=[JobgateError])  # pyright: ignore - the overload forgets these two
class JobWorkflow:
    LOOP: ClassVar[type[Loop]] = Loop

    @workflow.init
    def __init__(self, inputs: Sequence[RawValue]) -> None:
        start = read_start(inputs)
        self._job = None if start is None else self.LOOP(start)

    @workflow.run
    async def run(self, inputs: Sequence[RawValue]) -> EndRecord:
        del inputs  # read in __init__, where an early signal finds the state that it needs
        return await self._known().run()

    @workflow.query(name=VIEW_QUERY)
    def view(self, asked: ViewInput) -> ViewOutput:
        """The job as it is now, with the events after a cursor. Adds nothing to the history."""
        return self._known().view(asked)

    @workflow.signal(dynamic=True)
    def hint(self, name: str, args: Sequence[RawValue]) -> None:
        if self._job is not None:
            self._job.hint(name, args)

    def recovered(self, tag: str) -> None:
        """An operator reset the job to here (`workflows.resets`); `tag` is another one after every reset."""
        if self._job is not None:
            self._job.recovered(tag)

    def _known(self) -> Loop:
        """The job, or the failure that ends a workflow which Jobgate did not start."""
        if self._job is None:
            raise ApplicationError(
                "The workflow was not started by Jobgate: its input can not be read.",
                type=FailureCode.INPUT_REJECTED,
                non_retryable=True,
            )
        return self._job


def read_start(inputs: Sequence[RawValue]) -> JobStart | None:
    """The start input of a job; None for anything else."""
    try:
        if workflow.info().workflow_type == WORKFLOW_TYPE and len(inputs) == 1:
            return workflow.payload_converter().from_payload(inputs[0].payload, JobStart)
    except Exception:  # noqa: BLE001 - a foreign payload may raise anything
        return None
    return None
