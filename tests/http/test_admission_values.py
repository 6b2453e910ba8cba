"""What a good body survives: depth, labels, and every value exact from submission to tool and result (cases.md B50)."""

import json
import math
from typing import Any

import pytest_asyncio

from tests.http.submissions import (
    CANARY,
    publish_brisk,
    row_of,
    submit_bytes,
)
from tests.rig.client import Client, fresh_key
from tests.rig.effect_log import EffectLog
from tests.rig.plugins import call, final, publish_plugin, tool, turn
from tests.rig.stack import Stack


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def brisk(stack: Stack) -> str:
    return await publish_brisk(stack.client("operator"), "values-brisk")


def nested(depth: int) -> str:
    """A sound body whose deepest value is inside `depth` arrays and objects."""
    inner = depth - 2
    return f'{{"plugin": "values-brisk", "input": {{"{CANARY}": {"[" * inner}{"]" * inner}}}}}'


async def test_depth_64_is_taken(app: Client, brisk: str) -> None:
    assert (await submit_bytes(app, nested(64))).status_code == 202


async def test_labels_at_their_limits_are_kept_whole(app: Client, brisk: str) -> None:
    labels = {f"{'k' * 62}{n:02}": "ä" * 256 for n in range(15)} | {"empty": ""}
    key = await app.accepted(brisk, labels=labels, initiator={"kind": "user", "id": "ü" * 200})
    view = await app.until_ended(key)
    assert (view["status"], view["labels"]) == ("succeeded", labels)


async def test_values_are_exact_from_submission_to_tool_and_result(
    stack: Stack, app: Client, effects: EffectLog
) -> None:
    name = "body-exact"
    await publish_plugin(
        stack.client("operator"),
        name,
        [turn(call(name, {"v": "{{ input.v }}"})), final({"v": "{{ input.v }}"})],
        tools=[tool(name, "idempotent_write")],
        tools_url=effects.url,
        policy="permit (principal, action, resource);\n",
    )
    value: dict[str, Any] = {
        "largest": 2**53 - 1,
        "least": -(2**53) + 1,
        "tenth": 0.1,
        "smallest": 5e-324,
        "money": "9999999999999999.99",
        "ten cents": "0.10",
        "nan": "NaN",
        "instant": "2040-01-31T12:00:00.123456+05:30",
        "date": "2040-01-31",
        "uuid": "0af76519-16cd-43dd-8448-eb211c80319c",
        "text": "\u0000\u001f\u007f\u2028\U0001f600e\u0301\u00e9",
        "nothing": [None, [], {}, "", False, 0],
        "template": "{{ 1 }} {% x %}",
        "": {" ": " "},
    }
    key, body = fresh_key(), json.dumps({"plugin": name, "input": {"v": value}})
    assert (await submit_bytes(app, body, key)).status_code == 202
    ended = await app.until_ended(key)
    assert ended["status"] == "succeeded", ended["failure"]
    assert ended["result"] == {"v": value}
    assert effects.calls(name)[0].args == {"v": value}
    row = await row_of(stack, key)
    assert row is not None
    assert json.loads(row.job_input) == {"v": value}
    assert math.copysign(1, ended["result"]["v"]["tenth"]) == 1
