"""May this be admitted, as what, and within which limits: the verdicts that admission turns into answers.

`Judge` is asked here over a real ledger and real blobs; that its refusals reach HTTP is tests/http's.
"""

import json
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from itertools import product
from pathlib import Path
from typing import Any, get_args

import pytest

from gateway.authority import Allowed, Denied, GrantLimits
from gateway.jobrequest import fingerprint
from gateway.judging import refuse_by
from gateway.known import Known
from gateway.ledger.catalog import withdraw_version
from gateway.ledger.engine import Ledger
from gateway.ledger.grants import insert_grant
from gateway.ledger.receipts import accept, mark_refused, reserve
from gateway.limits import least, narrowed
from tests.unit.judging_world import CALLER, CANARY, KEY, NOW, World, new_world, request
from tests.unit.ledger_rows import APP, AT, DEMO, OPERATOR, REFUND, grant, receipt
from workflows.contract.errors import ProblemCode, Refused
from workflows.contract.gates import EligibilityFacts, Phase
from workflows.contract.job import JobStart, Limits, Mode
from workflows.policy.eligibility import classify


def limits(**changed: Any) -> Limits:
    base = {"max_steps": 20, "max_duration_seconds": 600, "max_tokens": 1000, "max_cost_usd": Decimal("1.00")}
    return Limits.model_validate({**base, **changed})


# ---- limits


def test_least_takes_per_limit_the_lower_of_snapshot_and_grant() -> None:
    granted = GrantLimits(max_steps=5, max_duration_seconds=6000, max_cost_usd="0.25", max_tokens=999)
    assert least(limits(), granted) == limits(max_steps=5, max_tokens=999, max_cost_usd=Decimal("0.25"))


@pytest.mark.parametrize(
    ("own", "granted", "result"),
    [(None, None, None), ("1", None, "1"), (None, "2", "2"), ("1", "2", "1"), ("2", "1", "1")],
)
def test_money_without_a_limit_on_one_side_is_the_other_sides(
    own: str | None, granted: str | None, result: str | None
) -> None:
    got = least(limits(max_cost_usd=own and Decimal(own)), GrantLimits(max_cost_usd=granted)).max_cost_usd
    assert got == (None if result is None else Decimal(result))


def test_budget_narrows_and_what_is_not_asked_stays() -> None:
    asked = request(budget={"max_steps": 20, "max_cost_usd": "0.50"})
    assert narrowed(limits(), GrantLimits(), asked) == limits(max_cost_usd=Decimal("0.50"))
    assert narrowed(limits(), GrantLimits(), request()) == limits()


@pytest.mark.parametrize(
    ("budget", "granted", "named"),
    [
        ({"max_steps": 21}, GrantLimits(), "max_steps"),
        ({"max_steps": 6}, GrantLimits(max_steps=5), "max_steps"),
        ({"max_tokens": 1001}, GrantLimits(), "max_tokens"),
        ({"max_cost_usd": "1.01"}, GrantLimits(), "max_cost_usd"),
        ({"max_cost_usd": "0.26"}, GrantLimits(max_cost_usd="0.25"), "max_cost_usd"),
    ],
)
def test_asking_for_more_than_a_limit_is_refused_by_name(budget: Any, granted: GrantLimits, named: str) -> None:
    with pytest.raises(Refused) as caught:
        narrowed(limits(), granted, request(budget=budget))
    assert caught.value.code is ProblemCode.LIMIT_EXCEEDED
    assert caught.value.extras["limit"] == named


# ---- verdict to answer, over the full product

PHASE_VALUES: tuple[Phase, ...] = get_args(Phase)
MODES: tuple[Mode, ...] = get_args(Mode)


def expected(facts: EligibilityFacts, mode: Mode, on_blocked: str) -> ProblemCode | None:
    """The rule of api.md, said once more by other means than `refuse_by`."""
    verdict = classify(facts)
    by_eligibility = {
        "blocked": ProblemCode.BLOCKED,
        "local_only": None if mode == "dry_run" else ProblemCode.LOCAL_ONLY,
        "dry_run_eligible": ProblemCode.NOT_LIVE_APPROVED if (mode, on_blocked) == ("live", "refuse") else None,
        "live_approved": None,
    }
    return by_eligibility[verdict.eligibility.value]


def test_every_verdict_has_its_answer() -> None:
    seen: set[ProblemCode | None] = set()
    for version_phase, runtime_phase, offload, capable, sound, mode, on_blocked in product(
        PHASE_VALUES, PHASE_VALUES, ("allowed", "local_only"), (True, False), (True, False), MODES, ("hold", "refuse")
    ):
        facts = EligibilityFacts.model_validate(
            {
                "version_phase": version_phase,
                "runtime_phase": runtime_phase,
                "offload": offload,
                "capabilities_met": capable,
                "snapshot_ok": sound,
            }
        )
        asked = request(mode=mode, on_blocked=on_blocked)
        wanted = expected(facts, mode, on_blocked)
        seen.add(wanted)
        if wanted is None:
            refuse_by(classify(facts), asked)
            continue
        with pytest.raises(Refused) as caught:
            refuse_by(classify(facts), asked)
        assert caught.value.code is wanted
        assert caught.value.extras["executed"] == "no"
        assert caught.value.extras["not_yet"].startswith("Not yet")
        assert caught.value.extras["blocker"] is classify(facts).blocker
    assert seen == {None, ProblemCode.BLOCKED, ProblemCode.LOCAL_ONLY, ProblemCode.NOT_LIVE_APPROVED}


# ---- the judge over a ledger and blobs


@pytest.fixture
async def world(ledger: Ledger, tmp_path: Path) -> World:
    return await new_world(ledger, tmp_path)


async def test_sound_submission_becomes_a_row_and_a_start_that_agree(world: World) -> None:
    await world.publish()
    asked = request(labels={"ticket": "T-17"}, initiator={"kind": "user", "id": "cust_9"}, budget={"max_steps": 3})
    row, start = await world.admit(asked)
    answered = json.loads(row.receipt)
    assert list(answered) == [
        "job_id", "status", "mode", "eligibility", "blocker", "executed", "accepted_at", "deadline", "fingerprint",
        "plugin", "snapshot", "session", "retry_of",
    ]  # fmt: skip
    assert (answered["job_id"], answered["status"], answered["executed"]) == (KEY, "queued", "no")
    assert (answered["eligibility"], answered["blocker"]) == ("live_approved", None)
    assert answered["plugin"] == {"name": REFUND, "version": "1.0.0", "digest": row.plugin_digest}
    assert answered["fingerprint"] == row.fingerprint == start.fingerprint == fingerprint(APP, asked)
    assert answered["snapshot"] == row.snapshot == start.snapshot
    assert row.reserved_at == start.accepted_at == start.deadline - timedelta(seconds=86_400)
    assert row.deadline_at == start.deadline
    assert start.limits.max_steps == 3
    assert JobStart.model_validate_json(row.start_input) == start
    assert json.loads(row.job_input) == {"invoice": "inv_17"}
    # The input is the ledger's alone: it must not reach a history.
    assert b"inv_17" not in row.start_input


async def test_absent_plugin_and_absent_version_are_unknown(world: World) -> None:
    assert (await world.refusal(request())).code is ProblemCode.PLUGIN_UNKNOWN
    await world.publish()
    assert (await world.refusal(request(version="9"))).code is ProblemCode.PLUGIN_UNKNOWN
    await world.admit(request(version="1.0.0"))


@pytest.mark.parametrize(
    ("state", "blocker", "next_gate"),
    [
        ({"released": False}, "release_missing", "stateful_noop"),
        ({"deployed": False}, "deployment_missing", None),
        ({"phase": None}, "phase_blocked_noop", "stateful_noop"),
        ({"phase": "blocked_noop"}, "phase_blocked_noop", "stateful_noop"),
        (
            {"deployment": {"connections": {"shop": {"base_url": "http://h", "credential": {"ref": "env:JOBGATE_X"}}}}},
            "scope_violation",
            None,
        ),
    ],
)
async def test_what_is_missing_blocks_by_name(
    world: World, state: dict[str, Any], blocker: str, next_gate: str | None
) -> None:
    await world.publish(**state)
    refused = await world.refusal(request(mode="dry_run"))
    assert refused.code is ProblemCode.BLOCKED
    told = dict(refused.extras)
    assert told.pop("not_yet").startswith("Not yet")
    assert told == {"eligibility": "blocked", "blocker": blocker, "executed": "no", "next_gate": next_gate}


async def test_withdrawn_version_is_blocked(world: World) -> None:
    await world.publish()
    await world.ledger.write(
        lambda conn: withdraw_version(conn, DEMO, REFUND, "1.0.0", reason="bad", by=OPERATOR, at=AT)
    )
    assert (await world.refusal(request())).extras["blocker"] == "version_withdrawn"


async def test_one_changed_byte_of_the_bundle_is_a_snapshot_mismatch(world: World) -> None:
    await world.publish()
    held = [path for path in world.blobs.rglob("*") if path.is_file() and b"Explain the invoice" in path.read_bytes()]
    assert held
    for path in held:
        path.write_bytes(path.read_bytes().replace(b"Explain", b"explain"))
    # Another process, which has not these bytes in memory.
    other = await new_world(world.ledger, world.blobs.parent)
    assert (await other.refusal(request())).extras["blocker"] == "snapshot_mismatch"


async def test_local_only_and_missing_capabilities(world: World) -> None:
    await world.publish(manifest={"services: [shop]": "services: [shop]\noffload: local_only"})
    refused = await world.refusal(request())
    assert (refused.code, refused.extras["blocker"]) == (ProblemCode.LOCAL_ONLY, "local_only_by_contract")
    _, start = await world.admit(request(mode="dry_run"))
    assert classify(start.facts).eligibility == "local_only"
    await world.publish("2.0.0", manifest={"services: [shop]": "services: [shop]\nrequires: [gpu]"})
    assert (await world.refusal(request())).extras["blocker"] == "capability_unavailable"


async def test_hold_or_refuse_below_live(world: World) -> None:
    await world.publish(phase="stateful_noop")
    refused = await world.refusal(request(on_blocked="refuse"))
    assert refused.code is ProblemCode.NOT_LIVE_APPROVED
    assert (refused.extras["blocker"], refused.extras["next_gate"]) == ("awaiting_promotion", "live_canary")
    row, _ = await world.admit(request())
    held = json.loads(row.receipt)
    assert (held["eligibility"], held["blocker"]) == ("dry_run_eligible", "awaiting_promotion")
    assert held["status"] == "queued"
    await world.runtime("blocked_noop")
    assert (await world.refusal(request())).extras["blocker"] == "phase_blocked_noop"


async def test_input_that_does_not_fit_the_schema_is_refused_without_repeating_it(world: World) -> None:
    await world.publish()
    refused = await world.refusal(request(input={"invoice": 17, CANARY: CANARY}))
    assert refused.code is ProblemCode.INPUT_INVALID
    assert refused.detail.startswith("input: ")
    assert (await world.refusal(request(input={CANARY: 1}))).code is ProblemCode.INPUT_INVALID


async def test_deadlines(world: World) -> None:
    await world.publish()
    ahead = (NOW + timedelta(hours=1)).isoformat()
    _, start = await world.admit(request(deadline=ahead))
    assert start.deadline == NOW + timedelta(hours=1)
    for text in ((NOW - timedelta(milliseconds=1)).isoformat(), "1970-01-01T00:00:00Z"):
        assert (await world.refusal(request(deadline=text))).code is ProblemCode.DEADLINE_INVALID
    assert (await world.refusal(request(deadline="9999-12-31T23:59:59Z"))).code is ProblemCode.LIMIT_EXCEEDED
    for seconds in (0, -1):
        assert (await world.refusal(request(timeout_seconds=seconds))).code is ProblemCode.DEADLINE_INVALID
    for seconds in (86_401, 2**53 - 1):
        assert (await world.refusal(request(timeout_seconds=seconds))).code is ProblemCode.LIMIT_EXCEEDED


async def test_grant_decides_who_may_and_how_much(world: World) -> None:
    stranger = replace(CALLER, principal=OPERATOR)
    # Before the plugin is looked for: else a caller without a grant learns which plugins there are.
    assert (await world.refusal(request(), stranger)).code is ProblemCode.NOT_PERMITTED
    await world.publish()
    assert (await world.refusal(request(), replace(CALLER, scopes=frozenset()))).code is ProblemCode.NOT_PERMITTED
    tight = grant("g-op", principal=OPERATOR, limits={"max_duration_seconds": 60, "max_steps": 2}, at=NOW)
    await world.ledger.write(lambda conn: insert_grant(conn, tight))
    _, start = await world.admit(request(), stranger)
    assert (start.limits.max_steps, start.deadline - start.accepted_at) == (2, timedelta(seconds=60))
    assert (await world.refusal(request(timeout_seconds=61), stranger)).code is ProblemCode.LIMIT_EXCEEDED


# ---- the one look at the ledger


async def test_known_key_decides_and_nothing_else_is_read(world: World) -> None:
    row = receipt(KEY)
    await world.ledger.write(lambda conn: reserve(conn, row))
    known = await world.look(request())
    assert known.row is not None
    assert (known.row.job_id, known.authority, known.resolved) == (KEY, None, None)


async def test_refused_row_does_not_decide_unless_accepted_after_all(world: World) -> None:
    await world.publish()
    row = receipt(KEY)
    await world.ledger.write(lambda conn: reserve(conn, row))
    await world.ledger.write(lambda conn: mark_refused(conn, DEMO, KEY, AT))
    known = await world.look(request())
    assert known.row is not None
    assert isinstance(known.authority, Allowed)
    assert known.resolved is not None
    await world.ledger.write(lambda conn: accept(conn, DEMO, KEY, AT))
    assert (await world.look(request())).authority is None


async def test_unknown_key_brings_authority_and_catalog(world: World) -> None:
    known = await world.look(request())
    assert known == Known(None, known.authority, None, published=False, phase="live", change_no=known.change_no)
    stranger = await world.look(request(), replace(CALLER, principal=OPERATOR))
    assert isinstance(stranger.authority, Denied)
    await world.publish(released=False)
    unreleased = await world.look(request())
    assert (unreleased.resolved, unreleased.published) == (None, True)
