"""Which build new jobs go to: the versions of one Temporal worker deployment are the builds of our workers.

A versioned worker is pinned: a job stays on the build that took it, and new ones go to the build that is current. A
worker that is not versioned (development) takes whatever comes, so new code takes over at once. Which build is current
is the engine's own fact; nothing here elects, and no job is moved.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from temporalio.api.workflowservice.v1 import (
    DescribeWorkerDeploymentRequest,
    DescribeWorkerDeploymentResponse,
    SetWorkerDeploymentCurrentVersionRequest,
)
from temporalio.client import Client
from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import WorkerDeploymentConfig

from gateway.histories import Histories, current_of, unless_silent
from gateway.ledger.presence import ProcessRow
from gateway.settings import Settings
from gateway.telemetry import log

BETWEEN_TRIES_S = 0.5
SAID_AFTER_S = 10.0
"""A build that could not be made current for so long says why, and goes on trying."""


def deployment_of(settings: Settings, build: str) -> WorkerDeploymentConfig | None:
    """What a worker of these settings tells the engine of itself; None: it is not versioned."""
    if not (settings.versioned or settings.set_current):
        return None
    return WorkerDeploymentConfig(
        version=WorkerDeploymentVersion(deployment_name=settings.deployment_name, build_id=build),
        use_worker_versioning=True,
        default_versioning_behavior=VersioningBehavior.PINNED,
    )


async def takers(histories: Histories, settings: Settings, rows: Sequence[ProcessRow]) -> Sequence[ProcessRow]:
    """Of these processes, those that new jobs may go to. All of them while the engine is silent: whoever asks it next
    says so."""
    current = await unless_silent(histories.current_build(settings.deployment_name))
    if current is None or (not current and not settings.versioned):
        return rows
    return [row for row in rows if row.build == current]


@asynccontextmanager
async def placed(client: Client, settings: Settings, build: str) -> AsyncGenerator[None]:
    """Beside a worker that polls: its build becomes current where it was told to be, or where none is; a worker that is
    not versioned takes new jobs from whatever build is. Tried until it is done."""
    placing = asyncio.create_task(_Place(client, settings, build).take())
    try:
        yield
    finally:
        placing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await placing


class _Place:
    def __init__(self, client: Client, settings: Settings, build: str) -> None:
        self._client = client
        self._settings = settings
        self._build = build
        self._name = settings.deployment_name

    async def take(self) -> None:
        loop = asyncio.get_running_loop()
        until, said = loop.time() + SAID_AFTER_S, False
        while True:
            try:
                if await self._try():
                    return
                why = "the engine does not know this build yet"
            except RPCError as error:
                why = _reason(error)
            except Exception as error:  # noqa: BLE001 - tried again; a silent end would leave new jobs to nobody
                why = "of a fault in Jobgate"
                if not said:
                    said = True
                    log.error("making this build current failed", exc_info=error)
            if not said and loop.time() >= until:
                said = True
                log.warning("this build could not be made current yet", build=self._build, reason=why)
            await asyncio.sleep(BETWEEN_TRIES_S)

    async def _try(self) -> bool:
        """Whether this build is where it belongs. Raises RPCError."""
        found = await self._described()
        current = None if found is None else current_of(found) or None
        if deployment_of(self._settings, self._build) is None:
            if found is not None and current is not None:
                await self._set_current(found, "")
                log.info("a worker that is not versioned takes over", deployment=self._name, before=current)
            return True
        if found is None:
            return False
        if current == self._build:
            log.info("this build is current", build=self._build)
            return True
        if current is not None and not self._settings.set_current:
            log.info("another build is current: this one only ends what it began", build=self._build, current=current)
            return True
        known = {one.deployment_version.build_id for one in found.worker_deployment_info.version_summaries}
        if self._build not in known:
            return False
        await self._set_current(found, self._build)
        log.info("this build was made current", build=self._build, before=current)
        return True

    async def _described(self) -> DescribeWorkerDeploymentResponse | None:
        try:
            return await self._client.workflow_service.describe_worker_deployment(
                _question(self._client.namespace, self._name)
            )
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return None
            raise

    async def _set_current(self, found: DescribeWorkerDeploymentResponse, build: str) -> None:
        """Raises RPCError: FAILED_PRECONDITION where the current build serves a queue that this one does not poll."""
        await self._client.workflow_service.set_worker_deployment_current_version(
            SetWorkerDeploymentCurrentVersionRequest(
                namespace=self._client.namespace,
                deployment_name=self._name,
                build_id=build,
                conflict_token=found.conflict_token,
                identity=self._client.identity,
            )
        )


def _question(namespace: str, name: str) -> DescribeWorkerDeploymentRequest:
    return DescribeWorkerDeploymentRequest(namespace=namespace, deployment_name=name)


def _reason(error: RPCError) -> str:
    match error.status:
        case RPCStatusCode.FAILED_PRECONDITION:
            return "a lane that the current build serves has no worker of this build yet: start one for each lane"
        case RPCStatusCode.PERMISSION_DENIED | RPCStatusCode.UNAUTHENTICATED:
            return "these credentials may not change worker deployments"
        case RPCStatusCode.UNIMPLEMENTED:
            return "this engine has no worker deployments: set JOBGATE_VERSIONED=false"
        case _:
            return f"the engine answered {error.status.name}"
