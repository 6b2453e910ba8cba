"""Every recorded history replays on today's workflow, and one added activity turns each of them red."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio import workflow
from temporalio.client import WorkflowHistory
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import Replayer

from activities.accepted import AcceptedOnly
from tests.replay.scenarios import SCENARIOS
from workflows.job import JobWorkflow
from workflows.loop import Loop

HISTORIES = sorted((Path(__file__).parent / "histories").glob("*.json"))


def name_of(path: Path) -> str:
    return path.name.split(".")[0]


def history_of(path: Path) -> WorkflowHistory:
    return WorkflowHistory.from_json(f"demo.{name_of(path)}", path.read_text(encoding="utf-8"))


async def replay(path: Path) -> None:
    replayer = Replayer(
        workflows=[JobWorkflow],
        data_converter=pydantic_data_converter,
        workflow_runner=AcceptedOnly(),  # whose worker is not there: a single activation left out turns this red
    )
    await replayer.replay_workflow(history_of(path))


async def one_more_activity() -> None:
    await workflow.execute_activity("one_more", schedule_to_close_timeout=timedelta(seconds=9))


class OneMoreInTheLoop(Loop):
    async def _keep_small(self) -> None:
        await one_more_activity()
        await super()._keep_small()


class OneMoreAtTheGate(Loop):
    async def _pass_gate(self) -> None:
        await one_more_activity()
        await super()._pass_gate()


class OneMoreOnCancel(Loop):
    async def _end_canceled(self, work: Any) -> None:
        await one_more_activity()
        await super()._end_canceled(work)


MUTANT: dict[str, type[Loop]] = {
    "dry_run": OneMoreAtTheGate,
    "dry_run_with_a_plan": OneMoreAtTheGate,
    "revoked_while_held": OneMoreAtTheGate,
    "canceled_in_queue": OneMoreOnCancel,
}
"""Where the loop is never reached, the added activity stands on the path that is."""


def test_every_scenario_has_a_history_and_every_history_a_scenario() -> None:
    assert {name_of(path) for path in HISTORIES} == {scenario.__name__ for scenario in SCENARIOS}


@pytest.mark.parametrize("path", HISTORIES, ids=lambda path: path.stem)
async def test_recorded_history_replays(path: Path) -> None:
    await replay(path)


@pytest.mark.parametrize("path", HISTORIES, ids=lambda path: path.stem)
async def test_one_added_activity_turns_the_history_red(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(JobWorkflow, "LOOP", MUTANT.get(name_of(path), OneMoreInTheLoop))
    with pytest.raises(workflow.NondeterminismError):
        await replay(path)
