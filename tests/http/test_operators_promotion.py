"""Promotions go up rung by rung with evidence or by break-glass, demotions down at once; packets are apart."""

from typing import Any

import pytest

from tests.http.jobs import waiting_job, waiting_plugin
from tests.http.submissions import CANARY, publish_brisk, refused
from tests.rig.client import Client, Json, problem
from tests.rig.plugins import fresh_name, promote
from tests.rig.stack import Stack


async def phase_of(operator: Client, name: str) -> str:
    return (await operator.get(f"/v1/plugins/{name}/versions"))["data"][0]["phase"]


async def test_an_ordinary_promotion_without_evidence_names_all_that_is_missing(stack: Stack, operator: Client) -> None:
    name = await publish_brisk(operator, fresh_name("op-gate"), phase=None)
    url = f"/v1/plugins/{name}/versions/1.0.0/promotions"
    closed: list[tuple[Json, int]] = [
        ({"to": "stateful_noop"}, 1),
        ({"to": "live_canary", "evidence": {"note": CANARY}}, 4),
        ({"to": "live"}, 5),
        ({"to": "blocked_noop"}, 1),
        ({"to": "blocked_noop", "break_glass": {"reason": CANARY}}, 1),
    ]
    for order, missing in closed:
        document = refused(await operator.http.post(url, json=order), 409, "gate-not-met")
        assert len(document["missing"]) == missing
        assert document["not_yet"].startswith("Not yet")
        assert await phase_of(operator, name) == "blocked_noop"
    assert (await stack.client("app").submit(name)).status_code == 409
    # The mutant: what is open does change the phase.
    done = await promote(operator, name, "1.0.0")
    assert (done["state"], done["phase"]) == ("done", "live")
    assert await phase_of(operator, name) == "live"
    assert (await stack.client("app").submit(name)).status_code == 202
    refused(await operator.http.post(url, json={"to": "live", "break_glass": {"reason": "again"}}), 409, "gate-not-met")


async def test_break_glass_may_stop_at_any_higher_rung(stack: Stack, operator: Client) -> None:
    name = await publish_brisk(operator, fresh_name("op-rung"), phase=None)
    for phase in ("stateful_noop", "live_canary"):
        assert (await promote(operator, name, "1.0.0", to=phase))["phase"] == phase
    receipt = (await stack.client("app").submit(name)).json()
    assert (receipt["eligibility"], receipt["blocker"]) == ("dry_run_eligible", "awaiting_promotion")


async def test_a_demotion_is_at_once_and_says_what_becomes_of_open_jobs(
    stack: Stack, operator: Client, app: Client
) -> None:
    plugin = await waiting_plugin(stack, operator)
    job, request = await waiting_job(app, plugin)
    url = f"/v1/plugins/{plugin}/versions/1.0.0/demotions"
    down = await operator.post(url, {"to": "stateful_noop", "reason": "a test"})
    assert (down["phase"], down["previous"], down["open_jobs"]) == ("stateful_noop", "live", 1)
    assert await phase_of(operator, plugin) == "stateful_noop"
    approver = stack.client("approver")
    await approver.decide(job, request, "approve")
    view = await app.until_ended(job)
    assert (view["status"], view["failure"]["code"]) == ("failed", "authority_revoked")
    assert stack.effects.calls("pay", job=job) == []
    held = (await app.submit(plugin)).json()
    assert held["blocker"] == "awaiting_promotion"
    refused(await operator.http.post(url, json={"to": "live", "reason": "up"}), 409, "gate-not-met")
    refused(await operator.http.post(url, json={"to": "blocked_noop"}), 422, "input-invalid")
    refused(await app.http.post(url, json={"to": "blocked_noop", "reason": "x"}), 403, "not-permitted")
    await operator.post(url, {"to": "blocked_noop", "reason": "a test"})
    assert problem(await app.submit(plugin)) == (409, "blocked")


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
