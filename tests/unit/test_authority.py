"""Authority: the scope and a valid grant, both, each time; and what a fresh workspace starts with."""

from datetime import datetime
from itertools import product
from typing import Any

import pytest

from gateway.authority import ADMIN_ACTIONS, Allowed, Denied, decide, effective_limits, seed_demo, set_runtime_phase
from gateway.ledger.engine import Ledger
from gateway.ledger.grants import GrantRow, grants_of, list_grants, revoke_grant
from gateway.ledger.journal import read_audit
from gateway.ledger.phases import runtime_phase
from gateway.scopes import EVERY_SCOPE, Action, Caller
from tests.unit.ledger_rows import APP, AT, DEMO, OPERATOR, REFUND, SECOND, grant
from workflows.contract.ids import PrincipalId, Workspace

SUBMIT = Action.JOBS_SUBMIT


def caller(*scopes: str) -> Caller:
    return Caller(APP, DEMO, frozenset(scopes), frozenset(), "t-1")


def row(revoked_at: datetime | None = None, **changed: Any) -> GrantRow:
    return GrantRow(**vars(grant(**changed)), revoked_at=revoked_at)


FITTING = row()
NOT_FITTING = {
    "another action": row(actions=("jobs:read",)),
    "another plugin": row(plugins=("feedback",)),
    "no plugin": row(plugins=()),
    "expired": row(expires_at=AT),
    "revoked": row(revoked_at=AT - SECOND),
    "another principal": row(principal=OPERATOR),
    "another workspace": row(workspace=Workspace("other")),
}


@pytest.mark.parametrize(
    "fitting",
    [FITTING, row(actions=("*",)), row(plugins=("*",)), row(plugins=("feedback", REFUND)), row(expires_at=AT + SECOND)],
)
def test_the_scope_and_a_fitting_grant_allow(fitting: GrantRow) -> None:
    assert isinstance(decide(caller(SUBMIT), [fitting], SUBMIT, REFUND, AT), Allowed)
    assert isinstance(decide(caller(SUBMIT), [*NOT_FITTING.values(), fitting], SUBMIT, REFUND, AT), Allowed)


@pytest.mark.parametrize("why", NOT_FITTING)
def test_a_grant_that_does_not_fit_allows_nothing(why: str) -> None:
    verdict = decide(caller(*EVERY_SCOPE), [NOT_FITTING[why]], SUBMIT, REFUND, AT)
    assert isinstance(verdict, Denied)
    assert verdict.lacks == "grant"


def test_no_grants_together_make_one_that_fits() -> None:
    assert isinstance(decide(caller(*EVERY_SCOPE), NOT_FITTING.values(), SUBMIT, REFUND, AT), Denied)


def test_a_grant_without_the_scope_allows_nothing() -> None:
    verdict = decide(caller("jobs:read", "*"), [row(actions=("*",), plugins=("*",))], SUBMIT, REFUND, AT)
    assert isinstance(verdict, Denied)
    assert verdict.lacks == "scope"


def test_an_action_that_concerns_no_plugin_needs_no_plugin_in_the_grant() -> None:
    granted = row(actions=("operator:read",), plugins=())
    assert isinstance(decide(caller("operator:read"), [granted], Action.OPERATOR_READ, None, AT), Allowed)


@pytest.mark.parametrize(("action", "held"), list(product(Action, Action)))
def test_each_action_needs_its_own_scope_and_its_own_grant(action: Action, held: Action) -> None:
    by_scope = decide(caller(held), [row(actions=("*",))], action, REFUND, AT)
    by_grant = decide(caller(*EVERY_SCOPE), [row(actions=(held.value,))], action, REFUND, AT)
    assert isinstance(by_scope, Allowed) == isinstance(by_grant, Allowed) == (action is held)


def test_limits_are_the_widest_of_the_grants_and_absent_is_unbounded() -> None:
    narrow = row(limits={"max_steps": 5, "max_cost_usd": "0.50", "max_concurrent_jobs": 1})
    wide = row(limits={"max_steps": 9, "max_cost_usd": "10.00"})
    both = effective_limits([narrow, wide])
    assert (both.max_steps, both.max_cost_usd, both.max_concurrent_jobs, both.max_tokens) == (9, "10.00", None, None)
    assert effective_limits([narrow]).max_concurrent_jobs == 1


def test_the_limits_of_a_grant_that_does_not_fit_do_not_count() -> None:
    wide = row(actions=("jobs:read",), limits={})
    verdict = decide(caller(SUBMIT), [row(limits={"max_steps": 5}), wide], SUBMIT, REFUND, AT)
    assert isinstance(verdict, Allowed)
    assert verdict.limits.max_steps == 5


async def test_the_demo_workspace_is_seeded_once_as_the_contract_says(ledger: Ledger) -> None:
    await seed_demo(ledger)
    first = await ledger.read(lambda conn: list_grants(conn, DEMO))
    await seed_demo(ledger)
    assert await ledger.read(lambda conn: list_grants(conn, DEMO)) == first
    assert {seeded.principal: set(seeded.actions) for seeded in first} == {
        "app": {"jobs:submit", "jobs:read", "jobs:cancel", "sessions:read"},
        "operator": EVERY_SCOPE - {"jobs:decide"},
        "approver": {"jobs:decide"},
    }
    assert all((seeded.plugins, seeded.limits, seeded.expires_at) == (("*",), {}, None) for seeded in first)
    assert set(ADMIN_ACTIONS) == EVERY_SCOPE - {"jobs:decide"}


async def test_seeding_again_does_not_undo_a_revocation(ledger: Ledger) -> None:
    await seed_demo(ledger)
    (seeded,) = await ledger.read(lambda conn: grants_of(conn, DEMO, APP, AT))
    await ledger.write(lambda conn: revoke_grant(conn, DEMO, seeded.grant_id, by=OPERATOR, at=AT))
    await seed_demo(ledger)
    assert await ledger.read(lambda conn: grants_of(conn, DEMO, APP, AT)) == ()


async def test_the_runtime_phase_is_set_on_record_and_only_when_it_differs(ledger: Ledger) -> None:
    for _ in range(2):
        await set_runtime_phase(ledger, "live", by=PrincipalId("setup"), reason="development")
    assert await ledger.read(runtime_phase) == "live"
    lines = await ledger.read(lambda conn: read_audit(conn, Workspace("any"), after=0, limit=10))
    assert [(line.actor, line.action, line.subject) for line in lines] == [("setup", "promotion.done", "runtime")]
