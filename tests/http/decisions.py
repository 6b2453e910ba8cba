"""People who decide, and jobs that ask them: what the tests of decisions share."""

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any

import httpx2

from tests.http.jobs import READS_RUN
from tests.rig.client import Client, Json
from tests.rig.plugins import ASK_ALL, call, final, fresh_name, publish_plugin, tool, turn
from tests.rig.stack import Stack

_people = itertools.count(1)


async def person(
    stack: Stack, operator: Client, *actions: str, named: str = "person", **token: Any
) -> tuple[Client, str, str]:
    """Somebody new: a client, the name, and the id of their one grant; without `actions`, of `jobs:decide`."""
    name = f"{named}-{next(_people)}"
    order = {"principal": name, "actions": list(actions or ("jobs:decide",)), "plugins": ["*"]}
    given = await operator.post("/v1/grants", order, expect=201)
    return stack.client(name, **token), name, given["grant_id"]


async def revoke(operator: Client, grant_id: str) -> None:
    assert (await operator.http.delete(f"/v1/grants/{grant_id}")).is_success


async def asking(
    stack: Stack,
    operator: Client,
    *calls: Json,
    tools: Sequence[Json] = (),
    deployment: Json | None = None,
    **options: Any,
) -> str:
    """A plugin whose one turn makes these calls, each write of which asks; without calls, one `pay`. `options` are the
    tool's."""
    name = fresh_name("asks")
    await publish_plugin(
        operator,
        name,
        [turn(*(calls or (call("pay", {"n": 1}),))), final({"ok": True})],
        tools=tools or [tool("pay", "write", **options)],
        tools_url=stack.effects.url,
        policy=READS_RUN + ASK_ALL,
        deployment=deployment,
    )
    return name


def question(text: str, **schema: Any) -> Json:
    return call("ask_human", {"question": text, **({"schema": schema} if schema else {})})


async def decided_at_once(who: Client, job: str, requests: Sequence[str], decision: str, **more: Any) -> list[int]:
    """The status codes of one decision on each request, ten at a time."""
    gate = asyncio.Semaphore(10)

    async def one(request: str) -> int:
        async with gate:
            return (await who.decide(job, request, decision, **more)).status_code

    return list(await asyncio.gather(*map(one, requests)))


async def raw_decision(who: Client, job: str, request: str, body: Any) -> httpx2.Response:
    return await who.http.post(f"/v1/jobs/{job}/requests/{request}/decision", json=body)
