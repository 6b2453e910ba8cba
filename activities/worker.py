"""The worker process: `python -m activities.worker [--lane NAME] [--set-current]`. SIGTERM drains, then exit 0.

The composition root of the hands: every object with a secret, a socket or a database is made here, once. Workflows run
without the SDK's sandbox, which costs 27 ms and 0.13 MB a job (measured): ruff's bans, replay tests and runs without a
cache guard determinism instead.
"""

import argparse
import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta

from temporalio.client import Client
from temporalio.contrib.opentelemetry import TracingInterceptor
from temporalio.worker import Worker

from activities.accepted import AcceptedOnly
from activities.boundary import Boundary
from activities.callbacks import CallbackActivity
from activities.decisions import LedgerActivities
from activities.delivery import Delivery
from activities.model import ModelActivity
from activities.providers import Providers
from activities.tool import ToolActivity
from gateway.allowlist import CredentialPolicy
from gateway.blobs import Blobs
from gateway.calls.callbacks import WaysBack, public_base
from gateway.calls.egress import Door
from gateway.calls.gateway import CallGateway
from gateway.calls.http_call import HttpCalls
from gateway.calls.kinds import Kind, Kinds, Later
from gateway.calls.permits import Permits
from gateway.calls.python_tool import PythonCalls, installed_tools
from gateway.calls.reconciling import Reconciling
from gateway.calls.writes import Writes
from gateway.changes import Changes
from gateway.erasing import Eraser, Retention
from gateway.ledger.engine import Ledger
from gateway.presence import present, process_of
from gateway.settings import Settings, load_settings
from gateway.snapshots import Snapshots
from gateway.telemetry import Telemetry, log, route_engine_logs, start_telemetry
from gateway.temporal import Engine, connect
from gateway.versioning import deployment_of, placed
from workflows.contract.errors import JobgateError, Refused
from workflows.job import JobWorkflow
from workflows.resets import Resets

CONCURRENT_STEPS = 100
RECONNECT_S = 1.0
HEARTBEATS_AT_LEAST_EVERY = timedelta(seconds=1)
"""How soon an attempt learns from the engine that it is not waited for any more."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Never returns: an SDK process can abort while the interpreter shuts down (design.md section 7)."""
    parser = argparse.ArgumentParser(prog="python -m activities.worker", description="Runs Jobgate's jobs.")
    parser.add_argument("--lane", help="the lane to serve; JOBGATE_LANE, else default")
    parser.add_argument("--set-current", action="store_true", default=None, help="new jobs go to this worker's build")
    options = parser.parse_args(arguments)
    try:
        code = asyncio.run(serve(load_settings(lane=options.lane, set_current=options.set_current)))
    except JobgateError as error:
        sys.stderr.write(f"{error.detail}\n")
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


async def serve(settings: Settings) -> int:
    """Works until SIGTERM or SIGINT; 0, or 1 where the worker failed."""
    telemetry = start_telemetry("worker", settings)
    route_engine_logs()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    try:
        client = await _connected(settings, telemetry, stop)
        if client is None:
            return 0
        async with working(client, settings, telemetry) as worker:
            return await _until(stop, worker)
    finally:
        telemetry.close()


@asynccontextmanager
async def working(client: Client, settings: Settings, telemetry: Telemetry) -> AsyncGenerator[Worker]:
    """A worker that is ready to run, with all it needs; what was opened is closed behind it."""
    ledger = Ledger.open(settings.ledger_url)
    try:
        sweeping = asyncio.create_task(
            Changes(ledger, Engine(client, settings), settings.sweep_s, notes_ends=True).run()
        )
        eraser = Eraser(ledger, Blobs.open(settings.blobs_url), Engine(client, settings))
        retaining = asyncio.create_task(
            Retention(eraser, settings.content_retention_days, settings.content_sweep_s).run()
        )
        try:
            async with Door() as door:
                process = process_of(settings, "worker", identity=client.identity, tools=installed_tools())
                worker = make_worker(client, settings, telemetry, ledger, door, process.build)
                async with (
                    present(ledger, process, telemetry.warnings, settings.presence_s),
                    placed(client, settings, process.build),
                ):
                    yield worker
        finally:
            sweeping.cancel()
            retaining.cancel()
    finally:
        await ledger.close()


def make_worker(
    client: Client, settings: Settings, telemetry: Telemetry, ledger: Ledger, door: Door, build: str
) -> Worker:
    blobs = Blobs.open(settings.blobs_url)
    snapshots = Snapshots(blobs)
    credentials = CredentialPolicy.load(settings)
    permits = Permits(ledger, Engine(client, settings), telemetry.metrics, settings.authority_ttl_s)
    ways_back = WaysBack(ledger, public_base(settings))
    kinds = Kinds(
        http=HttpCalls(door, credentials, ways_back),
        mcp=Later(lambda: _mcp(door, credentials)),
        python=PythonCalls(ledger, credentials),
    )
    calls = CallGateway(kinds, permits, Writes(ledger, blobs, permits), snapshots, blobs, ways_back)
    tools = ToolActivity(calls, Reconciling(kinds, permits, ledger, snapshots, blobs))
    reads = LedgerActivities(ledger, blobs)
    providers = Providers(door, credentials)
    model = ModelActivity(permits, ledger, snapshots, blobs, providers, kinds, settings.model_sees_bytes)
    runner = AcceptedOnly()
    worker = Worker(
        client,
        task_queue=settings.lanes[settings.lane].task_queue,
        workflows=[JobWorkflow],
        activities=[
            model.model,
            tools.tool,
            tools.reconcile,
            reads.read_decision,
            reads.read_gate,
            reads.read_authority,
            CallbackActivity(ledger).read_callback,
            Delivery(ledger, blobs).publish,
            reads.archive_events,
        ],
        interceptors=[Boundary(telemetry.metrics, ledger), Resets()],
        workflow_runner=runner,
        max_cached_workflows=settings.max_cached_workflows,
        max_concurrent_activities=CONCURRENT_STEPS,
        sticky_queue_schedule_to_start_timeout=timedelta(seconds=settings.sticky_timeout_s),
        max_heartbeat_throttle_interval=HEARTBEATS_AT_LEAST_EVERY,
        graceful_shutdown_timeout=timedelta(seconds=settings.worker_grace_s),
        deployment_config=deployment_of(settings, build),
    )
    return runner.serves(worker)


def _mcp(door: Door, credentials: CredentialPolicy) -> Kind:
    from gateway.calls.mcp_tool import McpCalls  # half a second of processor time

    return McpCalls(door, credentials)


async def _connected(settings: Settings, telemetry: Telemetry, stop: asyncio.Event) -> Client | None:
    """The engine's client as soon as the engine answers; None where the process was told to stop before."""
    told = False
    log.info("connecting to the workflow engine")
    while not stop.is_set():
        try:
            return await connect(settings, [TracingInterceptor(telemetry.tracer)], lazy=False)
        except Refused:
            if not told:
                log.warning("waiting for the workflow engine")
            told = True
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), RECONNECT_S)
    return None


async def _until(stop: asyncio.Event, worker: Worker) -> int:
    """Runs the worker; a stop lets running steps end within the grace."""
    stopping = asyncio.create_task(stop.wait())
    running = asyncio.create_task(worker.run())
    log.info("polling for work", task_queue=worker.task_queue)
    await asyncio.wait({stopping, running}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not running.done():
        log.info("draining")
        await worker.shutdown()
    try:
        await running
    except Exception as error:  # noqa: BLE001  # whatever ended it, the process says so and leaves
        log.error("the worker ended", exc_info=error)
        return 1
    log.info("stopped")
    return 0


if __name__ == "__main__":
    main()
