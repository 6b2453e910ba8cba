"""Promotions: until the ladder is there, the break-glass to `live` is the one that opens a gate."""

from typing import Any

import pytest

from tests.http.submissions import CANARY, publish_brisk, refused
from tests.rig.client import Client, Json
from tests.rig.plugins import fresh_name, promote
from tests.rig.stack import Stack


async def phase_of(operator: Client, name: str) -> str:
    return (await operator.get(f"/v1/plugins/{name}/versions"))["data"][0]["phase"]


async def test_only_the_break_glass_to_live_opens_a_gate(stack: Stack, operator: Client) -> None:
    name = await publish_brisk(operator, fresh_name("op-gate"), phase=None)
    url = f"/v1/plugins/{name}/versions/1.0.0/promotions"
    closed: list[Json] = [
        {"to": "stateful_noop"},
        {"to": "live_canary", "evidence": {"note": CANARY}},
        {"to": "live"},
        {"to": "blocked_noop"},
        {"to": "live_canary", "break_glass": {"reason": CANARY}},
        {"to": "blocked_noop", "break_glass": {"reason": CANARY}},
    ]
    for order in closed:
        document = refused(await operator.http.post(url, json=order), 409, "gate-not-met")
        assert document["missing"]
        assert document["not_yet"].startswith("Not yet")
        assert await phase_of(operator, name) == "blocked_noop"
    assert (await stack.client("app").submit(name)).status_code == 409
    # The mutant: the one that is open does change the phase.
    done = await promote(operator, name, "1.0.0")
    assert (done["state"], done["phase"]) == ("done", "live")
    assert done["promotion_id"]
    assert await phase_of(operator, name) == "live"
    assert (await stack.client("app").submit(name)).status_code == 202
    document = refused(
        await operator.http.post(url, json={"to": "live", "break_glass": {"reason": "again"}}), 409, "gate-not-met"
    )
    assert document["missing"]


async def test_break_glass_has_a_scope_of_its_own(stack: Stack, operator: Client) -> None:
    name = await publish_brisk(operator, fresh_name("op-glass"), phase=None)
    url = f"/v1/plugins/{name}/versions/1.0.0/promotions"
    weak = stack.client("operator", scopes=["promotions:write"])
    order = {"to": "live", "break_glass": {"reason": "a test"}}
    refused(await weak.http.post(url, json=order), 403, "not-permitted")
    assert await phase_of(operator, name) == "blocked_noop"


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"to": CANARY},
        {"to": "live", "break_glass": {}},
        {"to": "live", "break_glass": {"reason": ""}},
        {"to": "live", "break_glass": CANARY},
        {"to": "live", "break_glass": True},
        {"to": "live", "release_held": "yes"},
        {"to": "live", "evidence": []},
        {"to": "live", CANARY: 1},
    ],
    ids=repr,
)
async def test_what_is_not_a_promotion_is_input_invalid(operator: Client, body: Any) -> None:
    for url in ("/v1/plugins/x/versions/1.0.0/promotions", "/v1/runtime/promotions"):
        refused(await operator.http.post(url, json=body), 422, "input-invalid")


async def test_runtime_that_is_live_goes_no_higher(operator: Client) -> None:
    order = {"to": "live", "break_glass": {"reason": "a test"}}
    refused(await operator.http.post("/v1/runtime/promotions", json=order), 409, "gate-not-met")
