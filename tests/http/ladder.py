"""What tests of the ladder share: people, plugins that stand on a rung, held jobs, packets, and planted evidence.

Evidence is planted in the stack's own ledger, because a test can not wait an hour for a smoke to grow old.
"""

from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
from temporalio.api.enums.v1 import EventType as HistoryType

from gateway.ledger.evidence import EvidenceKind, EvidenceRow, insert_evidence
from tests.http.submissions import execution, ledger_of
from tests.rig.client import Client, Json
from tests.rig.plugins import ALLOW_ALL, call, final, fresh_name, promote, publish_plugin, tool, turn
from tests.rig.stack import Stack
from workflows.contract.ids import Digest, PluginName, PrincipalId, Workspace

BOSS = ["promotions:approve", "operator:read", "promotions:write"]
MISSING_SMOKE = "a green smoke of this digest within the last hour (jobgate smoke)"
MISSING_DRY_RUN = "a dry run of this digest that succeeded"
MISSING_SIMULATION = "a simulation of this digest with a lane that fits"
MISSING_PACKET = "a redeemed packet whose job succeeded, as proof of this digest"


async def boss_of(stack: Stack, operator: Client, *actions: str) -> Client:
    """Somebody else who may approve."""
    name = fresh_name("boss")
    await operator.post(
        "/v1/grants", {"principal": name, "actions": list(actions) or BOSS, "plugins": ["*"]}, expect=201
    )
    return stack.client(name)


async def canary_plugin(
    stack: Stack, operator: Client, *, calls: tuple[Json, ...] = (), phase: str = "live_canary", **more: Any
) -> str:
    """A plugin with a read tool `look` and a write tool `pay`; its jobs make `calls`, or look once."""
    name = fresh_name("canary")
    await publish_plugin(
        operator,
        name,
        [turn(*(calls or (call("look", {"n": 1}),))), final({"seen": True})],
        tools=[tool("look"), tool("peek"), tool("pay", "write")],
        tools_url=stack.effects.url,
        policy=ALLOW_ALL,
        phase=None,
        **more,
    )
    if phase != "blocked_noop":
        await promote(operator, name, "1.0.0", to=phase)
    return name


async def held_job(app: Client, plugin: str, **body: Any) -> str:
    job = await app.accepted(plugin, **body)
    await app.until_event(job, "job.held")
    return job


def order(job: str, *tools: str, **members: Any) -> Json:
    return {"job_id": job, "allowed_tools": list(tools), "max_steps": 10, "expires_in_seconds": 600, **members}


async def propose(operator: Client, job: str, *tools: str, **members: Any) -> str:
    made = await operator.post("/v1/packets", order(job, *tools, **members), expect=201)
    assert made["state"] == "proposed"
    return made["packet_id"]


async def approve(boss: Client, packet: str) -> httpx2.Response:
    return await boss.http.post(f"/v1/packets/{packet}/approval")


async def packet_state(operator: Client, packet: str) -> str:
    return (await operator.get(f"/v1/packets/{packet}"))["state"]


async def run_by_packet(operator: Client, boss: Client, job: str, *tools: str, **members: Any) -> str:
    """The packet, approved."""
    packet = await propose(operator, job, *tools, **members)
    answer = await approve(boss, packet)
    assert answer.status_code == 200, answer.text
    return packet


def url_of(plugin: str, what: str = "promotions") -> str:
    return f"/v1/plugins/{plugin}/versions/1.0.0/{what}"


async def phase_of(operator: Client, plugin: str) -> str:
    return (await operator.get(f"/v1/plugins/{plugin}/versions"))["data"][0]["phase"]


async def demote(operator: Client, plugin: str, to: str, reason: str = "a test") -> Json:
    return await operator.post(url_of(plugin, "demotions"), {"to": to, "reason": reason})


async def digest_of(operator: Client, plugin: str) -> str:
    return (await operator.get(f"/v1/plugins/{plugin}/versions"))["data"][0]["digest"]


async def plant(
    stack: Stack,
    operator: Client,
    plugin: str,
    kind: EvidenceKind,
    *,
    green: bool = True,
    age: timedelta = timedelta(0),
) -> None:
    """Evidence of the plugin's version 1.0.0 as a smoke or a simulation of that age would have left it."""
    row = EvidenceRow(
        workspace=Workspace("demo"),
        plugin=PluginName(plugin),
        version="1.0.0",
        digest=Digest(await digest_of(operator, plugin)),
        kind=kind,
        green=green,
        detail={},
        by=PrincipalId("test"),
        at=datetime.now(UTC) - age,
    )
    async with ledger_of(stack) as ledger:
        await ledger.write(lambda conn: insert_evidence(conn, row))


async def activities_of(stack: Stack, job: str) -> list[str]:
    """The types of all activities that the job's history ever scheduled."""
    history = await (await execution(stack, job)).fetch_history()
    scheduled = HistoryType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED
    return [
        event.activity_task_scheduled_event_attributes.activity_type.name
        for event in history.events
        if event.event_type == scheduled
    ]
