"""Temporal stands still while somebody decides, cancels or reads: answers inside the request clock, one truth after.

What stands still while a job is submitted, and a ledger that is locked, are in `test_admission_crashes`.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable

import httpx2
import pytest
import pytest_asyncio

from tests.recovery.grounds import READS_RUN_WRITES_ASK, published, running_stack
from tests.rig.client import problem
from tests.rig.plugins import call, final, tool, turn
from tests.rig.stack import Stack

BUSY_S = 60.0
CLOCK_S = 5.0
SLACK_S = 3.0
"""What a machine that is busy with other tests may add."""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def ground(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Stack]:
    async with running_stack(tmp_path_factory.mktemp("trouble")) as stack:
        yield stack


async def in_time(asking: Awaitable[httpx2.Response]) -> httpx2.Response:
    async with asyncio.timeout(CLOCK_S + SLACK_S):
        return await asking


async def test_a_frozen_engine_loses_no_decision_and_no_cancel(ground: Stack) -> None:
    app, approver = ground.client(), ground.client("approver")
    plugin = await published(
        ground, [turn(call("thawed")), final()], tool("thawed", "write"), policy=READS_RUN_WRITES_ASK
    )
    decided, stopped = await app.accepted(plugin), await app.accepted(plugin)
    [request] = await app.until_request(decided, BUSY_S)
    [other] = await app.until_request(stopped, BUSY_S)
    digest = (await app.request(decided, request))["action_digest"]
    ground.temporal.freeze()
    try:
        answers = await asyncio.gather(
            in_time(approver.decide(decided, request, "approve", digest=digest)),
            in_time(app.cancel(stopped)),
            in_time(app.http.get(f"/v1/jobs/{decided}")),
            in_time(app.http.get(f"/v1/jobs/{decided}?after=0")),
        )
    finally:
        ground.temporal.resume()
    assert {answer.status_code for answer in answers} <= {202, 503, 504}
    assert all(answer.status_code == 202 or problem(answer)[0] >= 503 for answer in answers)
    again = await approver.decide(decided, request, "approve", digest=digest)
    assert again.status_code in (200, 202), again.text
    assert (await app.until_ended(decided, BUSY_S))["status"] == "succeeded"
    assert (await app.cancel(stopped)).status_code in (200, 202)
    assert (await app.until_ended(stopped, BUSY_S))["status"] == "canceled"
    late = await approver.decide(stopped, other, "approve", digest=digest)
    assert problem(late)[0] == 409
    assert [sent.job for sent in ground.effects.calls("thawed")] == [decided]
