"""An API process inside the test's own process, on a real stack: so that a test can do damage between two censuses."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

from fastapi import FastAPI
from starlette.types import ASGIApp

from gateway.app import create_app
from gateway.doors import Doors
from gateway.executions import look_at
from gateway.exercising import Exercised, exercise
from gateway.ground import Ground
from gateway.ledger.presence import ProcessRow, live_processes
from gateway.scopes import EVERY_SCOPE, Caller
from gateway.smoking import Smoked, smoke
from gateway.telemetry import start_telemetry
from tests.rig.client import Client
from tests.rig.plugins import ASK_ALL, call, final, fresh_name, publish_plugin, tool, turn
from tests.rig.stack import WORKSPACE, Stack
from tests.rig.waiting import wait_until
from workflows.contract.ids import JobId, PluginName, PrincipalId, Workspace

DEMO, OPERATOR = Workspace(WORKSPACE), PrincipalId("operator")
Plant = Callable[[], Awaitable[object]]


@dataclass(frozen=True)
class Inside:
    stack: Stack
    app: FastAPI
    doors: Doors

    async def smoke(self, plugin: str | None = None, plant: Plant | None = None) -> Smoked:
        """A smoke by the operator; `plant` is done between its two censuses, before the probes are sent."""

        async def planting(app: ASGIApp, authorization: str, ground: Ground) -> Exercised:
            if plant is not None:
                await plant()
            return await exercise(app, authorization, ground)

        caller = Caller(OPERATOR, DEMO, EVERY_SCOPE, frozenset(), "test")
        name = None if plugin is None else PluginName(plugin)
        authorization = f"Bearer {self.stack.token(OPERATOR)}"
        return await smoke(self.doors, self.app, caller, authorization, name, None, planting)

    async def live(self) -> list[ProcessRow]:
        return [*await self.doors.ledger.read(lambda conn: live_processes(conn, datetime.now(UTC)))]

    async def settled(self) -> None:
        """Until exactly the processes that run are on record as alive."""
        running = {process.pid for process in [*self.stack.apis, *self.stack.workers] if process.running}

        async def present() -> bool:
            return {one.pid for one in await self.live()} == {*running, self.doors.process.pid}

        await wait_until(present, 20, what="the processes that run are the ones on record")


@asynccontextmanager
async def inside(stack: Stack) -> AsyncGenerator[Inside]:
    telemetry = start_telemetry("api", stack.settings)
    app = create_app(stack.settings, telemetry)
    try:
        async with app.router.lifespan_context(app):
            one = Inside(stack, app, app.state.doors)
            await one.settled()
            yield one
    finally:
        telemetry.close()


async def held_job(app: Client, operator: Client) -> tuple[str, str]:
    """A plugin whose jobs wait for promotion, and one such job, parked."""
    plugin = fresh_name("held")
    await publish_plugin(operator, plugin, [final()], phase="live_canary")
    job = await app.accepted(plugin)
    await app.until_event(job, "job.held")
    return plugin, job


async def waiting_job(stack: Stack, app: Client, operator: Client) -> tuple[str, str]:
    """A job that waits for somebody's decision, and the request."""
    plugin = fresh_name("asking")
    await publish_plugin(
        operator,
        plugin,
        [turn(call("pay", {"n": 1})), final()],
        tools=[tool("pay", "write")],
        tools_url=stack.effects.url,
        policy=ASK_ALL,
    )
    job = await app.accepted(plugin)
    opened = await app.until_event(job, "request.opened")
    return job, opened["data"]["request_id"]


async def until_parked(inner: Inside, job: str) -> None:
    """Nothing is under way in the job, so that whatever its history gains from now on was caused."""

    async def parked() -> bool:
        found = await look_at(inner.doors.engine.histories, DEMO, [JobId(job)])
        return found[JobId(job)].parked

    await wait_until(parked, what=f"{job} is parked")
