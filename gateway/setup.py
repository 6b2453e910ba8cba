"""`jobgate setup`: what must exist before anything can be admitted. Safe to repeat; it never removes anything.

The namespace with its retention, the search attributes, the ledger's schema, a first workspace where one is asked for
and, in development, the demo grants and a live runtime. An existing namespace keeps its retention unless this is a
development stack.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from types import MappingProxyType

from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.namespace.v1 import NamespaceConfig
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.api.workflowservice.v1 import (
    DescribeNamespaceRequest,
    RegisterNamespaceRequest,
    UpdateNamespaceRequest,
)
from temporalio.envconfig import ClientConfig
from temporalio.service import ConnectConfig, RPCError, RPCStatusCode, ServiceClient

from gateway.authority import seed_demo, set_runtime_phase
from gateway.founding import Founded, found
from gateway.ledger.engine import Ledger
from gateway.ledger.migrate import migrate
from gateway.settings import DevStack, Settings, load_stack
from workflows.contract.errors import JobgateError
from workflows.contract.ids import PrincipalId, Workspace

RPC_TIMEOUT = timedelta(seconds=10)
VISIBLE_WITHIN_S = 30.0

Say = Callable[[str], None]

_FOUNDED: Mapping[Founded, str] = MappingProxyType(
    {
        "given": "{admin} is granted every action but jobs:decide",
        "present": "{admin} has every action but jobs:decide",
        "over": "the grant of {admin} was revoked or has expired, and stays so; another --admin would get one",
    }
)


class SetupFailed(JobgateError):
    """One line; what to look at is in it."""

    def __init__(self, detail: str) -> None:
        super().__init__("setup-failed", detail)


@dataclass(frozen=True)
class First:
    """A workspace and who runs it, where nobody may grant anything yet."""

    workspace: Workspace
    admin: PrincipalId


async def setup(settings: Settings, say: Say, first: First | None = None) -> None:
    """Prepares Temporal and the ledger; `say` is told one line per finished part. Raises `SetupFailed`."""
    await prepare_engine(settings, say)
    await prepare_ledger(settings, say)
    if first is not None:
        await _found(settings, say, first)


async def connect_service(settings: Settings) -> tuple[ServiceClient, str]:
    """The engine's raw services and the namespace that applies (`TEMPORAL_*` and temporal.toml win)."""
    profile = ClientConfig.load_client_connect_config()
    address = profile.get("target_host", settings.temporal_address)
    config = ConnectConfig(
        target_host=address,
        api_key=profile.get("api_key"),
        tls=profile.get("tls"),
        rpc_metadata=profile.get("rpc_metadata", {}),
    )
    try:
        return await ServiceClient.connect(config), profile.get("namespace", settings.namespace)
    except RuntimeError:
        raise SetupFailed(f"no Temporal server answers at {address}") from None


async def prepare_engine(settings: Settings, say: Say) -> None:
    stack = load_stack(settings.stack_file)
    engine, namespace = await connect_service(settings)
    try:
        await _ensure_namespace(engine, namespace, stack, settings, say)
        await _ensure_search_attributes(engine, namespace, stack, say)
    except RPCError as error:
        raise SetupFailed(f"Temporal refused the set-up of namespace {namespace} ({error.status.name})") from None


async def prepare_ledger(settings: Settings, say: Say) -> None:
    await asyncio.to_thread(migrate, settings.ledger_url)
    say("ledger: schema up to date")
    if settings.development:
        ledger = Ledger.open(settings.ledger_url)
        try:
            await seed_demo(ledger)
            await set_runtime_phase(ledger, "live", by=PrincipalId("setup"), reason="development stack")
        finally:
            await ledger.close()
        say("development: demo grants present, runtime phase live")


async def _found(settings: Settings, say: Say, first: First) -> None:
    ledger = Ledger.open(settings.ledger_url)
    try:
        outcome = await found(ledger, first.workspace, first.admin)
    finally:
        await ledger.close()
    say(f"workspace {first.workspace}: {_FOUNDED[outcome].format(admin=first.admin)}")


async def _ensure_namespace(
    engine: ServiceClient, namespace: str, stack: DevStack, settings: Settings, say: Say
) -> None:
    service = engine.workflow_service
    retention = NamespaceConfig()
    retention.workflow_execution_retention_ttl.FromTimedelta(stack.retention)
    try:
        found = await service.describe_namespace(DescribeNamespaceRequest(namespace=namespace), timeout=RPC_TIMEOUT)
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        asked = RegisterNamespaceRequest(
            namespace=namespace,
            workflow_execution_retention_period=retention.workflow_execution_retention_ttl,
            description="Jobgate's jobs",
        )
        await service.register_namespace(asked, timeout=RPC_TIMEOUT)
        say(f"namespace {namespace}: created, retention {stack.retention_days} days")
        return
    if settings.development and found.config.workflow_execution_retention_ttl != (
        retention.workflow_execution_retention_ttl
    ):
        await service.update_namespace(
            UpdateNamespaceRequest(namespace=namespace, config=retention), timeout=RPC_TIMEOUT
        )
    say(f"namespace {namespace}: present")


async def _ensure_search_attributes(engine: ServiceClient, namespace: str, stack: DevStack, say: Say) -> None:
    """Registers what is missing and waits until the server knows it; the kind of an existing one must agree."""
    wanted = {
        name: IndexedValueType.Value("INDEXED_VALUE_TYPE_" + _upper(kind))
        for name, kind in stack.search_attributes.items()
    }
    listed = ListSearchAttributesRequest(namespace=namespace)
    added: set[str] = set()
    try:
        async with asyncio.timeout(VISIBLE_WITHIN_S):
            while True:
                try:
                    answer = await engine.operator_service.list_search_attributes(listed, timeout=RPC_TIMEOUT)
                except RPCError as error:
                    # A namespace just created is not known to every part of the server at once.
                    if error.status is not RPCStatusCode.NOT_FOUND:
                        raise
                    await asyncio.sleep(0.2)
                    continue
                found = dict(answer.custom_attributes)
                for name in wanted.keys() & found.keys():
                    if found[name] != wanted[name]:
                        raise SetupFailed(f"search attribute {name} exists with another type")
                missing = {name: kind for name, kind in wanted.items() if name not in found}
                if not missing:
                    break
                fresh = {name: kind for name, kind in missing.items() if name not in added}
                if fresh:
                    await _add_search_attributes(engine, namespace, fresh)
                    added |= fresh.keys()
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise SetupFailed("the search attributes did not appear in time") from None
    say(f"search attributes: {len(added)} registered, {len(wanted) - len(added)} present")


async def _add_search_attributes(
    engine: ServiceClient, namespace: str, attributes: dict[str, IndexedValueType.ValueType]
) -> None:
    request = AddSearchAttributesRequest(namespace=namespace, search_attributes=attributes)
    try:
        await engine.operator_service.add_search_attributes(request, timeout=RPC_TIMEOUT)
    except RPCError as error:
        if error.status is not RPCStatusCode.ALREADY_EXISTS:
            raise


def _upper(kind: str) -> str:
    return "KEYWORD_LIST" if kind == "KeywordList" else kind.upper()
