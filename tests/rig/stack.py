"""Jobgate as the tests run it: a Temporal server, N API and N worker processes on one folder, all real and all mortal.

It owns their ports, environment and readiness. What a test does to a process it does through `Process`
(kill, stop, freeze, resume, start again); a restarted process keeps its port.
"""

import asyncio
import contextlib
import json
import random
import socket
import sys
from collections.abc import Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import Client as EngineClient
from temporalio.service import RPCError

from gateway.settings import Settings, load_settings, load_stack
from gateway.setup import setup
from gateway.tokens import DevelopmentKey
from tests.rig.client import Client
from tests.rig.effect_log import EffectLog
from tests.rig.overheard import EAR, Overhearing
from tests.rig.process import Process
from tests.rig.waiting import wait_until
from workflows.contract.ids import PrincipalId, Workspace

SECRETS: Mapping[str, str] = {"TOOL_TOKEN": "canary-tool-7f3e1c", "SHOP_TOKEN": "canary-shop-90ab42"}
"""Credentials of the test connections; leak tests look for these values everywhere."""
WORKSPACE = "demo"
_PORTS = (16_384, 32_768)
DELETE_AT_ONCE: Mapping[str, bool] = {
    "history.transferProcessorEnsureCloseBeforeDelete": False,
    "history.visibilityProcessorEnsureCloseBeforeDelete": False,
}
"""Else an execution that an operator deletes is gone only 20 s later (measured)."""


class Api(Process):
    """One API process and where it listens."""

    def __init__(self, name: str, folder: Path, environment: Mapping[str, str], port: int) -> None:
        super().__init__(
            name, ["-m", "gateway.api"], folder, environment={**environment, "JOBGATE_API_PORT": str(port)}
        )
        self.url = f"http://127.0.0.1:{port}"


class Stack:
    """`await stack.start()`, then use; `await stack.close()` ends every process it started.

    `settings` are further `JOBGATE_*` and other variables of the API and worker processes; `ledger_url` is another
    ledger than the folder's SQLite file.
    """

    def __init__(
        self,
        folder: Path,
        *,
        settings: Mapping[str, str] | None = None,
        ui: bool = False,
        ledger_url: str | None = None,
    ) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.data.mkdir(parents=True, exist_ok=True)
        self.port, self.ui_port = free_port(), free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.settings: Settings = load_settings(
            data=self.data, development=True, temporal_address=self.address, ledger_url=ledger_url
        )
        self.environment = {
            "JOBGATE_DATA": str(self.data),
            "JOBGATE_DEVELOPMENT": "true",
            "JOBGATE_LEDGER_URL": self.settings.ledger_url,
            "JOBGATE_TEMPORAL_ADDRESS": self.address,
            "JOBGATE_API_HOST": "127.0.0.1",
            "TEMPORAL_ADDRESS": self.address,
            "TEMPORAL_NAMESPACE": self.settings.namespace,
            **SECRETS,
            **(settings or {}),
        }
        self._tell_the_ear()
        self.temporal = self._temporal(ui)
        self.effects = EffectLog(folder / "effects")
        self.apis: list[Api] = []
        self.workers: list[Process] = []
        self._clients: list[Client] = []
        self._engine: EngineClient | None = None

    # --- starting and ending

    async def start(self, *, apis: int = 1, workers: int = 1) -> None:
        """Everything, ready to accept and run jobs."""
        self.effects.start()
        await self.start_temporal()
        await setup(self.settings, lambda _line: None)
        added = [self.add_api() for _ in range(apis)]
        polling = [self.add_worker() for _ in range(workers)]
        await asyncio.gather(*(self.until_ready(api) for api in added), *(self.until_polling(one) for one in polling))

    async def close(self) -> None:
        """Ends all it started, politely first; Temporal last, so that steps can be recorded.

        Fails at last where an app was told an id of the engine's.
        """
        for client in self._clients:
            await client.http.aclose()
        for process in [*self.apis, *self.workers, self.temporal]:
            if process.running:
                process.resume()
        try:
            run_ids = await self._run_ids()
            for process in [*self.apis, *self.workers]:
                process.stop()
        finally:
            for process in [*self.apis, *self.workers, self.temporal]:
                process.kill()
            self.effects.stop()
        EAR.settle([urlsplit(api.url).netloc for api in self.apis], run_ids)

    def _tell_the_ear(self) -> None:
        """What no app may be told: names and addresses of this stack, and to nobody its credentials."""
        live = EAR.live
        live.places |= {lane.task_queue: "task queue" for lane in self.settings.lanes.values()}
        live.places |= {self.address: "engine address", str(self.folder): "data folder"}
        secret = ("_KEY", "_TOKEN", "_SECRET", "_PASSWORD")
        live.secrets |= {value: name for name, value in self.environment.items() if name.endswith(secret)}

    async def start_temporal(self) -> None:
        """Starts or restarts the server on its file and port; returns when it serves."""
        self.temporal.start()
        await wait_until(self._temporal_serves, 30, what="Temporal serves")

    def add_api(self, settings: Mapping[str, str] | None = None) -> Api:
        """One more API process, started; see `until_ready`."""
        environment = {**self.environment, **(settings or {})}
        api = Api(f"api-{len(self.apis)}", self.folder, environment, free_port())
        self.apis.append(api)
        api.start()
        return api

    def add_worker(self, settings: Mapping[str, str] | None = None) -> Process:
        """One more worker process, started; see `until_polling`."""
        environment = {**self.environment, **(settings or {})}
        name = f"worker-{len(self.workers)}"
        worker = Process(name, ["-m", "activities.worker"], self.folder, environment=environment)
        self.workers.append(worker)
        worker.start()
        return worker

    # --- readiness

    async def until_ready(self, api: Api, timeout: float = 60.0) -> None:
        """Until `api` can accept submissions."""

        async def ready() -> bool:
            assert api.running, f"{api.name} ended ({api.exit_code}):\n{api.output[-3000:]}"
            try:
                async with httpx2.AsyncClient(timeout=5, transport=Overhearing()) as http:
                    return (await http.get(f"{api.url}/readyz")).status_code == 200
            except httpx2.HTTPError:
                return False

        await wait_until(ready, timeout, every=0.1, what=f"{api.name} is ready")

    async def until_polling(self, worker: Process, timeout: float = 60.0) -> None:
        """Until this very process polls for workflows and for activities (records of dead workers live for minutes)."""
        kinds = (TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW, TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY)

        async def polling() -> bool:
            assert worker.running, f"{worker.name} ended ({worker.exit_code}):\n{worker.output[-3000:]}"
            seen = [await self._pollers(kind) for kind in kinds]
            return all(any(identity.startswith(f"{worker.pid}@") for identity in found) for found in seen)

        await wait_until(polling, timeout, every=0.1, what=f"{worker.name} polls")

    async def _pollers(self, kind: "TaskQueueType.ValueType") -> list[str]:
        engine = await self.engine()
        lane = TaskQueue(name=self.settings.lanes[self.settings.lane].task_queue)
        question = DescribeTaskQueueRequest(namespace=engine.namespace, task_queue=lane, task_queue_type=kind)
        try:
            return [poller.identity for poller in (await engine.workflow_service.describe_task_queue(question)).pollers]
        except RPCError:
            return []

    async def _run_ids(self) -> list[str]:
        """Of all the engine still holds; none where a test has ended the engine."""
        if not self.temporal.running:
            return []
        return [listed.run_id async for listed in (await self.engine()).list_workflows()]

    async def engine(self) -> EngineClient:
        """The operator's door: histories, raw signals, terminate, reset, workflows started by hand."""
        if self._engine is None:
            self._engine = await EngineClient.connect(self.address, namespace=self.settings.namespace)
        return self._engine

    async def _temporal_serves(self) -> bool:
        assert self.temporal.running, f"Temporal ended:\n{self.temporal.output[-3000:]}"
        try:
            engine = await self.engine()
            return await engine.service_client.check_health(timeout=timedelta(seconds=2))
        except (RPCError, RuntimeError):
            return False

    # --- people

    def token(
        self,
        principal: str,
        *,
        workspace: str = WORKSPACE,
        scopes: Iterable[str] | None = None,
        groups: Iterable[str] = (),
        ttl: timedelta = timedelta(hours=1),
    ) -> str:
        """A development token; without `scopes` it carries every scope, and grants alone decide."""
        key = DevelopmentKey.load(self.data)
        token = key.mint(PrincipalId(principal), Workspace(workspace), scopes=scopes, groups=groups, ttl=ttl)
        EAR.live.signatures.add(token.rpartition(".")[2].encode())
        return token

    def client(
        self,
        principal: str = "app",
        *,
        api: int = 0,
        workspace: str = WORKSPACE,
        scopes: Iterable[str] | None = None,
        groups: Iterable[str] = (),
    ) -> Client:
        """A client of one API process; closed with the stack."""
        token = self.token(principal, workspace=workspace, scopes=scopes, groups=groups)
        client = Client(self.apis[api].url, token)
        self._clients.append(client)
        return client

    def _temporal(self, ui: bool) -> Process:
        stack = load_stack()
        server = stack.server
        flags = ["server", "start-dev", "--ip", server.ip, "--log-level", server.log_level, "--port", str(self.port)]
        flags += ["--ui-port", str(self.ui_port)] if ui else ["--headless"]
        flags += ["--db-filename", str(self.data / "temporal.db"), "--namespace", self.settings.namespace]
        for name, value in server.sqlite_pragmas.items():
            flags += ["--sqlite-pragma", f"{name}={value}"]
        for name, value in {**server.dynamic_config, **DELETE_AT_ONCE}.items():
            flags += ["--dynamic-config-value", f"{name}={json.dumps(value)}"]
        for name, kind in stack.search_attributes.items():
            flags += ["--search-attribute", f"{name}={kind}"]
        return Process("temporal", flags, self.folder, program=Path(sys.executable).with_name("temporal"))


def free_port() -> int:
    """A port nobody listens on now. Below those that the kernel gives to outgoing connections (Linux), of which the
    tests make so many that one would take it before its process listens, or while that is restarted."""
    while True:
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", random.randrange(*_PORTS))) as listener:
            return listener.getsockname()[1]
