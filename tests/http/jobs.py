"""Jobs in the states that readers meet: waiting for a person, ended in each way, with a known log."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from gateway.ledger.engine import Ledger
from gateway.ledger.grants import NewGrant, insert_grant
from tests.rig.client import Client, Json
from tests.rig.plugins import ALLOW_ALL, ASK_ALL, call, final, fresh_name, publish_plugin, tool, turn
from tests.rig.stack import Stack
from workflows.contract.ids import PrincipalId, Workspace

READS_RUN = 'permit (principal, action, resource) when { resource.effect == "read" };\n'


async def waiting_plugin(stack: Stack, operator: Client, **tool_options: Any) -> str:
    """One read, then one write that a person must approve, then the end."""
    name = fresh_name("reads")
    await publish_plugin(
        operator,
        name,
        [turn(call("look")), turn(call("pay", {"n": 1})), final({"ok": True})],
        tools=[tool("look"), tool("pay", "write", **tool_options)],
        tools_url=stack.effects.url,
        policy=READS_RUN + ASK_ALL,
    )
    return name


async def plugin_of(stack: Stack, operator: Client, script: Sequence[Json], *tools: Json, **options: Any) -> str:
    """Any script whose calls all run."""
    name = fresh_name("reads")
    await publish_plugin(
        operator, name, script, tools=tools, tools_url=stack.effects.url if tools else "", policy=ALLOW_ALL, **options
    )
    return name


async def waiting_job(app: Client, plugin: str, **body: Any) -> tuple[str, str]:
    """A job that waits for its one request, and the request's id."""
    job = await app.accepted(plugin, **body)
    [request] = await app.until_request(job)
    await app.until_status(job, "waiting_for_human")
    return job, request


async def history_length(stack: Stack, job: str) -> int:
    engine = await stack.engine()
    return (await engine.get_workflow_handle(f"demo.{job}").describe()).history_length


async def terminate(stack: Stack, job: str, reason: str = "canary-operator-words") -> None:
    engine = await stack.engine()
    await engine.get_workflow_handle(f"demo.{job}").terminate(reason)


async def grant(stack: Stack, workspace: str, principal: str, *actions: str, plugins: Sequence[str] = ("*",)) -> None:
    """A grant as the ledger keeps it; repeating it changes nothing."""
    new = NewGrant(
        grant_id=f"grant_{workspace}_{principal}_{'_'.join(plugins)}",
        workspace=Workspace(workspace),
        principal=PrincipalId(principal),
        actions=actions,
        plugins=tuple(plugins),
        limits={},
        expires_at=None,
        by="test",
        at=datetime.now(UTC),
    )
    ledger = Ledger.open(stack.settings.ledger_url)
    try:
        await ledger.write(lambda conn: insert_grant(conn, new))
    finally:
        await ledger.close()
