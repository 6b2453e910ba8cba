"""Each flag of a preview can turn true: an act planted in its path is refused, counted to that flag and to no other.

The doors are real and open in this process, over the shared stack; what is planted is called where the judging is.
"""

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from facade.views import JobAnswer
from facade.window import Window
from gateway.allowlist import CredentialPolicy
from gateway.app import serve_from
from gateway.doors import Doors, open_doors
from gateway.jobrequest import JobRequest
from gateway.judging import Judge, Weighed
from gateway.known import Known
from gateway.ledger.catalog import withdraw_version
from gateway.ledger.evidence import latest_evidence
from gateway.ledger.packets import approve_packet
from gateway.ledger.stops import stop_job
from gateway.previewing import Outlook, preview_job, preview_submission
from gateway.promoting import Climber, propose
from gateway.scopes import EVERY_SCOPE, Caller
from gateway.seams import Flag, Seen, WouldChange
from gateway.simulating import simulate
from gateway.telemetry import start_telemetry
from gateway.temporal import connect
from tests.http.jobs import history_length
from tests.http.submissions import known_to_engine
from tests.http.test_packets import canary_plugin, held_job
from tests.http.test_packets import propose as propose_packet
from tests.rig.client import Client, Json, fresh_key
from tests.rig.stack import Stack
from workflows.contract.gates import Eligibility
from workflows.contract.ids import JobId, PluginName, PrincipalId, Workspace
from workflows.contract.job import Status

DEMO = Workspace("demo")
APP = Caller(PrincipalId("app"), DEMO, EVERY_SCOPE, frozenset(), "t-1")
BOSS = Caller(PrincipalId("operator"), DEMO, EVERY_SCOPE, frozenset(), "t-2")


@dataclass(frozen=True, slots=True)
class Ground:
    """A plugin at live_canary with a held job and a proposed packet for it, and the doors of this process."""

    stack: Stack
    doors: Doors
    operator: Client
    app: Client
    plugin: PluginName
    job: JobId
    packet: str
    marker: Path
    key: str

    async def world(self) -> Json:
        """What the planted acts would change."""
        return {
            "started": await known_to_engine(self.stack, self.key),
            "history": await history_length(self.stack, self.job),
            "job": {**await self.app.status(self.job), "as_of": None},
            "packet": await self.operator.get(f"/v1/packets/{self.packet}"),
            "versions": await self.operator.get(f"/v1/plugins/{self.plugin}/versions"),
            "marker": await asyncio.to_thread(self.marker.exists),
        }


Act = Callable[[Ground], Awaitable[Any]]


async def start_a_workflow(ground: Ground) -> None:
    client = await connect(ground.doors.settings)
    await client.start_workflow("JobWorkflow", id=f"demo.{ground.key}", task_queue="nobody-polls-this")


async def signal_the_job(ground: Ground) -> None:
    await ground.doors.engine.hint_gate(DEMO, ground.job)


async def stop_the_job(ground: Ground) -> None:
    now = datetime.now(UTC)
    await ground.doors.ledger.write(lambda conn: stop_job(conn, DEMO, ground.job, by=APP.principal, at=now))


async def store_a_blob(ground: Ground) -> None:
    await ground.doors.blobs.put(DEMO, ground.key.encode())


async def start_a_process(ground: Ground) -> None:
    write = f"open({str(ground.marker)!r}, 'w')"
    await asyncio.to_thread(subprocess.run, [sys.executable, "-c", write], check=True)


async def use_the_packet(ground: Ground) -> None:
    now = datetime.now(UTC)
    await ground.doors.ledger.write(
        lambda conn: approve_packet(conn, DEMO, ground.packet, by=PrincipalId("boss"), now=now)
    )


async def withdraw_the_version(ground: Ground) -> None:
    now, of = datetime.now(UTC), (DEMO, ground.plugin, "1.0.0")
    await ground.doors.ledger.write_grouped(
        lambda conn: withdraw_version(conn, *of, reason="a test", by=BOSS.principal, at=now), key="versions"
    )


async def promote_the_version(ground: Ground) -> None:
    climber = Climber(DEMO, ground.plugin, "1.0.0")
    await propose(ground.doors, BOSS, climber, "live", note={}, break_glass="a test", release_held=False)


ACTS: list[tuple[Act, Flag]] = [
    (start_a_workflow, Flag.WORKER_EXECUTED),
    (signal_the_job, Flag.STATE_MUTATED),
    (stop_the_job, Flag.STATE_MUTATED),
    (store_a_blob, Flag.STATE_MUTATED),
    (start_a_process, Flag.PROCESS_STARTED),
    (use_the_packet, Flag.APPROVAL_CONSUMED),
    (withdraw_the_version, Flag.CONFIG_CHANGED),
    (promote_the_version, Flag.PHASE_PROMOTED),
]


class PlantedJudge(Judge):
    """Admission's judge, and an act that goes unnoticed by it."""

    act: Callable[[], Awaitable[Any]]

    async def weigh(self, caller: Caller, asked: JobRequest, known: Known) -> Weighed:
        await self.act()
        return await super().weigh(caller, asked, known)


class PlantedWindow(Window):
    act: Callable[[], Awaitable[Any]]

    async def job(self, viewer: Any, job_id: JobId) -> JobAnswer:
        await self.act()
        return await super().job(viewer, job_id)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def doors(stack: Stack) -> AsyncGenerator[Doors]:
    telemetry = start_telemetry("api", stack.settings)
    try:
        async with open_doors(stack.settings, telemetry) as opened:
            yield opened
    finally:
        telemetry.close()


@pytest_asyncio.fixture(loop_scope="session")
async def ground(stack: Stack, doors: Doors, operator: Client, app: Client, tmp_path: Path) -> Ground:
    plugin = await canary_plugin(stack, operator)
    job = await held_job(app, plugin)
    packet = await propose_packet(operator, job, "look")
    return Ground(
        stack, doors, operator, app, PluginName(plugin), JobId(job), packet, tmp_path / "started", fresh_key()
    )


def planted(ground: Ground, act: Callable[[], Awaitable[Any]]) -> tuple[Doors, bytes]:
    doors = ground.doors
    judge = PlantedJudge(doors.ledger, doors.snapshots, CredentialPolicy.load(doors.settings), doors.settings)
    judge.act = act
    return replace(doors, judge=judge), json.dumps({"plugin": ground.plugin, "input": {}}).encode()


async def of_submission(ground: Ground, act: Callable[[], Awaitable[Any]]) -> tuple[Outlook, Seen]:
    doors, body = planted(ground, act)
    return await preview_submission(doors, APP, body, soon())


async def of_job(ground: Ground, act: Callable[[], Awaitable[Any]]) -> tuple[Outlook, Seen]:
    plain = serve_from(ground.doors).window
    window = PlantedWindow(plain.reader, plain.watchers)
    window.act = act
    return await preview_job(ground.doors, window, APP, ground.job, soon())


def soon() -> float:
    return asyncio.get_running_loop().time() + 10


@pytest.mark.parametrize("path", [of_submission, of_job])
async def test_without_a_plant_no_flag_is_true(ground: Ground, path: Any) -> None:
    async def nothing() -> None:
        return

    outlook, seen = await path(ground, nothing)
    assert outlook.verdict.eligibility is Eligibility.DRY_RUN_ELIGIBLE
    assert seen.flags() == dict.fromkeys(Flag, False)


@pytest.mark.parametrize("path", [of_submission, of_job])
@pytest.mark.parametrize(("act", "flag"), ACTS)
async def test_a_planted_act_turns_its_flag_true_and_only_it_and_changes_nothing(
    ground: Ground, path: Any, act: Act, flag: Flag
) -> None:
    before = await ground.world()

    async def unnoticed() -> None:
        with contextlib.suppress(WouldChange):
            await act(ground)

    outlook, seen = await path(ground, unnoticed)
    assert seen.flags() == {each: each is flag for each in Flag}
    assert (outlook.projected, outlook.verdict.next_gate) == (Status.QUEUED, "live"), "the answer is still given"
    assert await ground.world() == before


@pytest.mark.parametrize("path", [of_submission, of_job])
async def test_judging_that_is_itself_refused_answers_blocked_and_says_so(ground: Ground, path: Any) -> None:
    before = await ground.world()
    outlook, seen = await path(ground, lambda: signal_the_job(ground))
    assert seen.raised() == [Flag.STATE_MUTATED]
    assert (outlook.verdict.eligibility, outlook.projected) == (Eligibility.BLOCKED, None)
    assert (outlook.verdict.not_yet or "").startswith("Not yet")
    assert (outlook.would_change, outlook.would_execute) == (False, False)
    assert await ground.world() == before


async def test_a_simulation_during_which_something_was_tried_is_no_evidence(ground: Ground) -> None:
    before = await ground.world()

    async def unnoticed() -> None:
        with contextlib.suppress(WouldChange):
            await signal_the_job(ground)

    async def green() -> bool:
        of = (DEMO, ground.plugin, "1.0.0")
        row = await ground.doors.ledger.read(lambda conn: latest_evidence(conn, "simulation", *of))
        assert row is not None
        return row.green

    doors, body = planted(ground, unnoticed)
    found = await simulate(doors, BOSS, ground.plugin, "1.0.0", body)
    assert (found.verdict.eligibility, len(found.places)) == (Eligibility.DRY_RUN_ELIGIBLE, 1)
    assert not await green()
    assert await ground.world() == before
    await simulate(ground.doors, BOSS, ground.plugin, "1.0.0", body)
    assert await green()


@pytest.mark.parametrize(("act", "flag"), [act for act in ACTS if act[0] is not store_a_blob])
async def test_every_planted_act_would_change_the_world(ground: Ground, act: Act, flag: Flag) -> None:
    """The mutant of the mutants: without a watch each of them does what the comparison above would see."""
    before = await ground.world()
    await act(ground)
    assert await ground.world() != before, flag
