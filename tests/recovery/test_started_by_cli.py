"""B39 and B41: a type that nobody knows, and an input that nobody can read, end at once and not by a task that fails
for ever."""

import asyncio

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError

from tests.recovery.operators import on_job
from tests.rig.client import fresh_key, problem
from tests.rig.stack import Stack
from workflows.contract.steps import WORKFLOW_TYPE


@pytest.mark.parametrize(
    ("kind", "given"),
    [("NoSuchWorkflow", '{"a": 1}'), (WORKFLOW_TYPE, "[1, 2]"), (WORKFLOW_TYPE, '{"job_id": 7}'), (WORKFLOW_TYPE, "7")],
)
async def test_what_the_cli_starts_with_an_unknown_type_or_a_wrong_input_ends_at_once(
    stack: Stack, kind: str, given: str
) -> None:
    key = fresh_key()
    lane = stack.settings.lanes[stack.settings.lane].task_queue
    await on_job(stack, key, "workflow", "start", "--task-queue", lane, "--type", kind, "--input", given)
    handle = (await stack.engine()).get_workflow_handle(f"demo.{key}")
    with pytest.raises(WorkflowFailureError) as failed:
        await asyncio.wait_for(handle.result(), 30)
    assert isinstance(failed.value.cause, ApplicationError)
    assert failed.value.cause.type == "input_rejected"
    types = [event.event_type async for event in handle.fetch_history_events()]
    assert EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED not in types
    assert problem(await stack.client().http.get(f"/v1/jobs/{key}")) == (404, "not-found")
