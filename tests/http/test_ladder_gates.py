"""A version climbs rung by rung on what the system recorded; two people, judged twice; every step is on record."""

from datetime import timedelta
from pathlib import Path

import pytest

from gateway.ledger.engine import Ledger
from gateway.ledger.phases import runtime_phase
from gateway.settings import load_settings
from gateway.setup import setup
from tests.conftest import FreshStack
from tests.http.ladder import (
    MISSING_DRY_RUN,
    MISSING_PACKET,
    MISSING_SIMULATION,
    MISSING_SMOKE,
    boss_of,
    canary_plugin,
    demote,
    digest_of,
    held_job,
    phase_of,
    plant,
    run_by_packet,
    url_of,
)
from tests.http.submissions import NONE, publish_brisk, refused, traces
from tests.http.trail import audit_end, audit_of
from tests.rig.client import Client, Json, fresh_key, problem
from tests.rig.plugins import fresh_name, promote
from tests.rig.stack import Stack

NOTE = {"smoke": "green", "dry_run": True, "packet": {"state": "redeemed"}}


async def not_met(operator: Client, plugin: str, **body: object) -> list[str]:
    document = refused(await operator.http.post(url_of(plugin), json=body), 409, "gate-not-met")
    assert document["not_yet"].startswith("Not yet: ")
    return document["missing"]


async def climb(operator: Client, boss: Client, plugin: str, to: str, **body: object) -> Json:
    """An ordinary promotion, proposed and approved."""
    proposal = await operator.post(url_of(plugin), {"to": to, **body}, expect=201)
    assert proposal["state"] == "proposed"
    done = await boss.post(f"/v1/promotions/{proposal['promotion_id']}/approval")
    assert (done["state"], done["phase"]) == ("done", to)
    return done


async def test_a_fresh_version_is_refused_without_a_workflow_and_without_using_up_the_key(
    stack: Stack, operator: Client, app: Client
) -> None:
    plugin, key = await publish_brisk(operator, fresh_name("fresh"), phase=None), fresh_key()
    for mode in ("live", "dry_run"):
        document = refused(await app.submit(plugin, key=key, mode=mode), 409, "blocked")
        assert {name: document[name] for name in ("eligibility", "blocker", "executed", "next_gate")} == {
            "eligibility": "blocked",
            "blocker": "phase_blocked_noop",
            "executed": "no",
            "next_gate": "stateful_noop",
        }
        assert document["not_yet"].startswith("Not yet: ")
        assert await traces(stack, key) == NONE
    await promote(operator, plugin, "1.0.0")
    accepted = await app.submit(plugin, key=key)
    assert (accepted.status_code, accepted.json()["job_id"]) == (202, key)


async def test_a_skipped_rung_is_told_all_that_is_missing_up_to_it(stack: Stack, operator: Client) -> None:
    plugin = await canary_plugin(stack, operator, phase="blocked_noop")
    up_to: dict[str, list[str]] = {
        "stateful_noop": [MISSING_SMOKE],
        "live_canary": [MISSING_SMOKE, MISSING_DRY_RUN, MISSING_SIMULATION],
        "live": [MISSING_SMOKE, MISSING_DRY_RUN, MISSING_SIMULATION, MISSING_PACKET],
    }
    for to, missing in up_to.items():
        first = [] if to == "stateful_noop" else ["one rung at a time: stateful_noop comes first"]
        assert await not_met(operator, plugin, to=to, evidence=NOTE) == [*first, *missing]
    await plant(stack, operator, plugin, "smoke")
    assert (await not_met(operator, plugin, to="live"))[1:] == [MISSING_DRY_RUN, MISSING_SIMULATION, MISSING_PACKET]
    assert await phase_of(operator, plugin) == "blocked_noop"


async def test_a_version_climbs_to_live_on_recorded_evidence_alone(stack: Stack, operator: Client, app: Client) -> None:
    plugin, boss = await canary_plugin(stack, operator, phase="blocked_noop"), await boss_of(stack, operator)
    await plant(stack, operator, plugin, "smoke")
    await climb(operator, boss, plugin, "stateful_noop")
    await plant(stack, operator, plugin, "simulation")
    assert await not_met(operator, plugin, to="live_canary") == [MISSING_DRY_RUN]
    await app.until_ended(await app.accepted(plugin, mode="dry_run"))
    await climb(operator, boss, plugin, "live_canary")
    assert await not_met(operator, plugin, to="live", evidence=NOTE) == [MISSING_PACKET]
    job = await held_job(app, plugin)
    await run_by_packet(operator, boss, job, "look")
    assert (await app.until_ended(job))["status"] == "succeeded"
    await climb(operator, boss, plugin, "live")
    assert (await app.until_ended(await app.accepted(plugin)))["status"] == "succeeded"


async def test_evidence_of_another_version_and_a_later_red_one_count_for_nothing(
    stack: Stack, operator: Client, app: Client
) -> None:
    one, other = [await canary_plugin(stack, operator, phase="blocked_noop") for _ in range(2)]
    await plant(stack, operator, one, "smoke")
    assert await not_met(operator, other, to="stateful_noop") == [MISSING_SMOKE]
    await plant(stack, operator, one, "smoke", green=False)
    assert await not_met(operator, one, to="stateful_noop") == [MISSING_SMOKE]
    await promote(operator, one, "1.0.0", to="stateful_noop")
    canceled = await app.accepted(one, mode="dry_run", timeout_seconds=3600)
    await app.cancel(canceled)
    if (await app.until_ended(canceled))["status"] == "canceled":
        assert MISSING_DRY_RUN in await not_met(operator, one, to="live_canary")


async def test_evidence_that_grew_old_is_refused_at_the_approval(stack: Stack, operator: Client) -> None:
    plugin, boss = await canary_plugin(stack, operator, phase="blocked_noop"), await boss_of(stack, operator)
    await plant(stack, operator, plugin, "smoke", age=timedelta(minutes=59))
    proposal = await operator.post(url_of(plugin), {"to": "stateful_noop"}, expect=201)
    approval = f"/v1/promotions/{proposal['promotion_id']}/approval"
    await plant(stack, operator, plugin, "smoke", age=timedelta(minutes=61))
    assert refused(await boss.http.post(approval), 409, "gate-not-met")["missing"] == [MISSING_SMOKE]
    assert await phase_of(operator, plugin) == "blocked_noop"
    await plant(stack, operator, plugin, "smoke")
    assert (await boss.post(approval))["state"] == "done"
    assert await phase_of(operator, plugin) == "stateful_noop"


async def test_an_approval_is_judged_on_the_phase_of_its_moment(stack: Stack, operator: Client) -> None:
    plugin, boss = await canary_plugin(stack, operator, phase="blocked_noop"), await boss_of(stack, operator)
    await plant(stack, operator, plugin, "smoke")
    proposals = [await operator.post(url_of(plugin), {"to": "stateful_noop"}, expect=201) for _ in range(2)]
    first, second = [f"/v1/promotions/{proposal['promotion_id']}/approval" for proposal in proposals]
    done = await boss.post(first)
    assert await boss.post(first) == done
    refused(await boss.http.post(second), 409, "gate-not-met")
    await demote(operator, plugin, "blocked_noop")
    assert await boss.post(first) == done, "a repeated approval is the record, and changes nothing"
    assert await phase_of(operator, plugin) == "blocked_noop"


async def test_neither_who_proposed_nor_who_published_approves(stack: Stack, operator: Client, app: Client) -> None:
    plugin = await canary_plugin(stack, operator, phase="blocked_noop")
    proposer, boss = await boss_of(stack, operator), await boss_of(stack, operator)
    await plant(stack, operator, plugin, "smoke")
    proposal = await proposer.post(url_of(plugin), {"to": "stateful_noop"}, expect=201)
    approval = f"/v1/promotions/{proposal['promotion_id']}/approval"
    publisher = operator
    for own in (proposer, publisher):
        assert problem(await own.http.post(approval)) == (403, "self-approval")
    assert problem(await app.http.post(approval)) == (403, "not-permitted")
    assert problem(await boss.http.post("/v1/promotions/promo_0/approval")) == (404, "not-found")
    assert await phase_of(operator, plugin) == "blocked_noop"
    assert (await boss.post(approval))["phase"] == "stateful_noop"


async def test_break_glass_skips_rungs_at_once_and_needs_scope_grant_and_reason(stack: Stack, operator: Client) -> None:
    plugin = await canary_plugin(stack, operator, phase="blocked_noop")
    boss = await boss_of(stack, operator)
    order = {"to": "live", "break_glass": {"reason": "the shop is down"}}
    assert problem(await boss.http.post(url_of(plugin), json=order)) == (403, "not-permitted")
    assert problem(await operator.http.post(url_of(plugin), json={**order, "break_glass": {}})) == (
        422,
        "input-invalid",
    )
    assert await phase_of(operator, plugin) == "blocked_noop"
    done = await operator.post(url_of(plugin), order, expect=201)
    assert (done["state"], done["phase"]) == ("done", "live")
    assert await phase_of(operator, plugin) == "live"


async def test_every_step_stands_in_the_audit_trail_with_who_what_and_why(
    stack: Stack, operator: Client, app: Client
) -> None:
    plugin, boss = await canary_plugin(stack, operator, phase="blocked_noop"), await boss_of(stack, operator)
    digest, version = await digest_of(operator, plugin), f"{plugin}@1.0.0"
    await plant(stack, operator, plugin, "smoke")
    cursor = await audit_end(operator)
    proposal = await operator.post(url_of(plugin), {"to": "stateful_noop", "evidence": NOTE}, expect=201)
    await boss.post(f"/v1/promotions/{proposal['promotion_id']}/approval")
    await demote(operator, plugin, "blocked_noop", "it went wrong")
    glass = {"to": "live_canary", "break_glass": {"reason": "the shop is down"}, "release_held": True}
    await operator.post(url_of(plugin), glass, expect=201)
    refused(await operator.http.post(url_of(plugin), json={"to": "live"}), 409, "gate-not-met")
    packet = await run_by_packet(operator, boss, job := await held_job(app, plugin), "look")
    await app.until_ended(job)
    revoked = await operator.post(
        "/v1/packets",
        {"job_id": await held_job(app, plugin), "allowed_tools": [], "max_steps": 1, "expires_in_seconds": 60},
        expect=201,
    )
    await operator.http.delete(f"/v1/packets/{revoked['packet_id']}")
    lines = [line for line in await audit_of(operator, cursor) if plugin in str(line)]
    boss_name = next(line["actor"] for line in lines if line["action"] == "packet.approved")
    assert [(line["actor"], line["action"], line["subject"]) for line in lines] == [
        ("operator", "promotion.proposed", version),
        (boss_name, "promotion.done", version),
        ("operator", "demotion.done", version),
        ("operator", "promotion.done", version),
        ("operator", "packet.proposed", packet),
        (boss_name, "packet.approved", packet),
        ("job", "packet.redeemed", packet),
        ("operator", "packet.proposed", revoked["packet_id"]),
        ("operator", "packet.revoked", revoked["packet_id"]),
    ]
    assert {line["detail"]["digest"] for line in lines} == {digest}
    steps = [line["detail"] for line in lines[:4]]
    assert [step["reason"] for step in steps] == ["", "", "it went wrong", "the shop is down"]
    assert [step["phase"] for step in steps] == ["stateful_noop", "stateful_noop", "blocked_noop", "live_canary"]
    assert [step["version"] for step in steps] == ["1.0.0"] * 4
    assert (steps[0]["note"], steps[1]["proposed_by"], steps[2]["previous"]) == (NOTE, "operator", "stateful_noop")
    assert (steps[3]["break_glass"], steps[3]["release_held"]) == (True, True)
    assert all(line["detail"]["version"] == version and line["detail"]["job"] for line in lines[4:])


async def test_outside_development_the_runtime_starts_at_the_lowest_rung(stack: Stack, tmp_path: Path) -> None:
    for development, phase in ((False, "blocked_noop"), (True, "live")):
        data = tmp_path / phase
        settings = load_settings(data=data, development=development, temporal_address=stack.address)
        data.mkdir()
        await setup(settings, lambda _line: None)
        ledger = Ledger.open(settings.ledger_url)
        assert await ledger.read(runtime_phase) == phase
        await ledger.close()


async def test_the_runtime_climbs_the_same_rungs(fresh_stack: FreshStack) -> None:
    own = await fresh_stack()
    operator = own.client("operator")
    plugin = await publish_brisk(operator, fresh_name("runtime"))
    await operator.post("/v1/runtime/demotions", {"to": "blocked_noop", "reason": "a test"})
    document = refused(await own.client("app").submit(plugin), 409, "blocked")
    assert (document["blocker"], document["next_gate"]) == ("phase_blocked_noop", "stateful_noop")
    skipped = refused(await operator.http.post("/v1/runtime/promotions", json={"to": "live"}), 409, "gate-not-met")
    assert skipped["missing"][0] == "one rung at a time: stateful_noop comes first"
    assert len(skipped["missing"]) == 5
    glass = {"to": "live_canary", "break_glass": {"reason": "a test"}}
    assert (await operator.post("/v1/runtime/promotions", glass, expect=201))["state"] == "done"
    receipt = (await own.client("app").submit(plugin)).json()
    assert (receipt["eligibility"], receipt["blocker"]) == ("dry_run_eligible", "awaiting_promotion")
    down = await operator.post("/v1/runtime/demotions", {"to": "blocked_noop", "reason": "a test"})
    assert (down["previous"], down["open_jobs"]) == ("live_canary", 1)
    refused(await own.client("app").submit(plugin), 409, "blocked")


@pytest.mark.parametrize("approver_first", [True, False])
async def test_of_an_approval_and_a_demotion_neither_skips_a_rung(
    stack: Stack, operator: Client, approver_first: bool
) -> None:
    plugin, boss = await canary_plugin(stack, operator, phase="stateful_noop"), await boss_of(stack, operator)
    await plant(stack, operator, plugin, "simulation")
    await stack.client("app").until_ended(await stack.client("app").accepted(plugin, mode="dry_run"))
    proposal = await operator.post(url_of(plugin), {"to": "live_canary"}, expect=201)
    approval = f"/v1/promotions/{proposal['promotion_id']}/approval"
    if approver_first:
        assert (await boss.post(approval))["phase"] == "live_canary"
        await demote(operator, plugin, "blocked_noop")
    else:
        await demote(operator, plugin, "blocked_noop")
        missing = refused(await boss.http.post(approval), 409, "gate-not-met")["missing"]
        assert missing == ["one rung at a time: stateful_noop comes first", MISSING_SMOKE]
    assert await phase_of(operator, plugin) == "blocked_noop"


async def test_a_proposal_made_before_a_demotion_opens_nothing_after_it(stack: Stack, operator: Client) -> None:
    plugin, boss = await canary_plugin(stack, operator, phase="blocked_noop"), await boss_of(stack, operator)
    await plant(stack, operator, plugin, "smoke")
    old, other = [
        (await operator.post(url_of(plugin), {"to": "stateful_noop"}, expect=201))["promotion_id"] for _ in "ab"
    ]
    done = await boss.post(f"/v1/promotions/{old}/approval")
    await demote(operator, plugin, "blocked_noop")
    refusal = refused(await boss.http.post(f"/v1/promotions/{other}/approval"), 409, "gate-not-met")
    assert refusal["missing"] == ["a proposal made after the phase moved last; propose it again"]
    assert (refusal["next_gate"], await phase_of(operator, plugin)) == ("stateful_noop", "blocked_noop")
    assert await boss.post(f"/v1/promotions/{old}/approval") == done, "repeating an approval is no second one"
    assert await phase_of(operator, plugin) == "blocked_noop"
    await climb(operator, boss, plugin, "stateful_noop")
