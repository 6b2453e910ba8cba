"""What happens before the first step: dry runs, held jobs, and inputs that nobody admitted."""

import asyncio
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from tests.workflow.hands import Hands, final
from tests.workflow.jobs import LIVE, TOOLS, Jobs, payload
from workflows.contract.gates import EligibilityFacts
from workflows.contract.steps import GateOutput

CANARY = EligibilityFacts(version_phase="live_canary", runtime_phase="live")


async def test_dry_run_plans_from_the_table_without_one_activity(jobs: Jobs) -> None:
    job = await jobs.start(Hands(), mode="dry_run", facts=CANARY, has_policy=False)
    ended = await job.end()
    assert ended.story == ["job.queued", "job.succeeded"]
    assert (ended.view.executed, ended.view.result_ref, ended.view.usage.steps) == ("no", None, 0)
    assert [(line.tool, line.effect, line.asks, line.would_ask) for line in ended.view.plan or ()] == [
        ("invoices.get", "read", "never", None),
        ("orders.get", "read", "never", None),
        ("refunds.create", "write", "always", "anyone who may decide"),
        ("notes.put", "idempotent_write", "always", "anyone who may decide"),
        ("ask_human", "read", "always", "anyone who may decide"),
    ]
    assert "refunds.find" in TOOLS
    assert not [kind for kind in await job.history_types() if kind.startswith("ACTIVITY")]


async def test_held_job_runs_nothing_until_its_gate_opens(jobs: Jobs) -> None:
    job = await jobs.start(Hands(model=[final(1)], gates=[GateOutput(open=False), GateOutput(open=True)]), facts=CANARY)
    view = (await job.until("job.held")).view
    assert (view.status, view.eligibility, view.executed) == ("queued", "dry_run_eligible", "no")
    assert job.hands.ran == []
    await job.handle.signal("gate")
    await job.until_ran("read_gate")
    await job.handle.signal("gate")
    ended = await job.end()
    assert ended.story == [
        "job.queued",
        "job.held awaiting_promotion",
        "job.released",
        "job.started",
        "step.started turn 1",
        "step.finished turn 1: 0 calls",
        "job.succeeded",
    ]
    assert job.hands.ran == ["read_gate", "read_gate", "model 1.1"]
    assert (ended.view.eligibility, ended.view.blocker) == ("live_approved", None)


async def test_held_job_keeps_its_deadline(skipping_jobs: Jobs) -> None:
    job = await skipping_jobs.start(Hands(), facts=CANARY, ends_in=600)
    ended = await job.end()
    assert ended.story == ["job.queued", "job.held awaiting_promotion", "job.failed deadline_exceeded"]
    assert ended.view.executed == "no"


async def test_held_job_can_be_canceled(jobs: Jobs) -> None:
    job = await jobs.start(Hands(), facts=CANARY)
    await job.until("job.held")
    await job.handle.cancel()
    ended = await job.end()
    assert ended.story == ["job.queued", "job.held awaiting_promotion", "cancel.requested", "job.canceled"]


@pytest.mark.parametrize(
    "facts",
    [LIVE.model_copy(update={"withdrawn": True}), LIVE.model_copy(update={"offload": "local_only"})],
    ids=["blocked", "local only"],
)
async def test_job_that_admission_would_have_refused_runs_nothing(jobs: Jobs, facts: EligibilityFacts) -> None:
    job = await jobs.start(Hands(model=[final(1)]), facts=facts)
    ended = await job.end()
    assert ended.story == ["job.queued", "job.failed input_rejected"]
    assert job.hands.ran == []


@pytest.mark.parametrize(
    "args",
    [
        pytest.param([], id="no input"),
        pytest.param([{"workspace": "demo"}], id="wrong shape"),
        pytest.param(["text"], id="text"),
        pytest.param([None], id="null"),
        pytest.param([7, 8], id="two inputs"),
        pytest.param([RawValue(payload(b'{"workspace": NaN}'))], id="NaN"),
        pytest.param([RawValue(payload(b"{not json"))], id="not JSON"),
        pytest.param([RawValue(payload(b"\x00", "binary/unknown"))], id="unknown encoding"),
    ],
)
async def test_workflow_started_by_hand_ends_at_once_with_input_rejected(jobs: Jobs, args: list[Any]) -> None:
    handle = await jobs.start_raw(args)
    try:
        with pytest.raises(WorkflowFailureError) as failed:
            await asyncio.wait_for(handle.result(), 3)
    except TimeoutError:
        await handle.terminate()
        raise
    cause = failed.value.cause
    assert isinstance(cause, ApplicationError)
    assert (cause.type, cause.non_retryable) == ("input_rejected", True)
