"""Who decides: nobody their own job by any path, nobody without the grant of that moment, and every person once."""

import pytest

from tests.http.decisions import asking, person, raw_decision, revoke
from tests.http.jobs import waiting_job
from tests.http.trail import audit_end, audit_of
from tests.rig.client import Client, Json, problem
from tests.rig.stack import Stack

DECIDES = ("jobs:submit", "jobs:read", "jobs:decide")


async def test_an_api_key_of_the_same_person_is_the_same_person(stack: Stack, operator: Client) -> None:
    boss, name, _ = await person(stack, operator, *DECIDES)
    other, _, _ = await person(stack, operator)
    plugin = await asking(stack, operator, approval={"quorum": 2, "groups": ["finance"]})
    job, request = await waiting_job(boss, plugin)
    order = {"principal": name, "scopes": ["jobs:decide"], "groups": ["finance"]}
    key = await operator.post("/v1/api-keys", order, expect=201)
    async with Client(stack.apis[0].url, key["key"]) as by_key:
        assert problem(await by_key.decide(job, request, "approve")) == (403, "self-approval")
        assert problem(await by_key.decide(job, request, "reject")) == (403, "self-approval")
    for groups in ((), ("sales",)):
        again = stack.client(name, groups=groups)
        assert problem(await again.decide(job, request, "approve")) == (403, "not-an-approver")
    for _ in range(2):
        again = stack.client(name, groups=["finance"], scopes=["jobs:decide", "jobs:read"])
        assert problem(await again.decide(job, request, "approve")) == (403, "self-approval")
    assert (await boss.request(job, request))["votes"] == []
    assert problem(await other.decide(job, request, "approve")) == (403, "not-an-approver")


async def test_a_key_and_a_token_of_one_person_are_one_vote_of_a_quorum(stack: Stack, operator: Client) -> None:
    first, name, _ = await person(stack, operator)
    plugin = await asking(stack, operator, approval={"quorum": 2})
    job, request = await waiting_job(stack.client("app"), plugin)
    assert (await first.decide(job, request, "approve")).json()["votes"] == 1
    key = await operator.post("/v1/api-keys", {"principal": name, "scopes": ["jobs:decide"]}, expect=201)
    async with Client(stack.apis[0].url, key["key"]) as by_key:
        again = await by_key.decide(job, request, "approve")
    assert (again.status_code, again.json()["state"], again.json()["votes"]) == (200, "pending", 1)
    assert stack.effects.calls("pay", job=job) == []


@pytest.mark.parametrize("spelled", ["plain", "with its kind", "as the principal spells it"])
async def test_the_initiator_decides_under_no_spelling(stack: Stack, operator: Client, spelled: str) -> None:
    caller, name, _ = await person(stack, operator)
    id = name
    if spelled == "as the principal spells it":
        caller = stack.client(f"user:{name}")
        order = {"principal": f"user:{name}", "actions": ["jobs:decide"], "plugins": ["*"]}
        await operator.post("/v1/grants", order, expect=201)
    elif spelled == "with its kind":
        id = f"user:{name}"
    initiator = {"kind": "user", "id": id}
    job, request = await waiting_job(stack.client("app"), await asking(stack, operator), initiator=initiator)
    assert problem(await caller.decide(job, request, "approve")) == (403, "self-approval")
    assert (await caller.request(job, request))["state"] == "pending"


async def test_who_submits_for_an_agent_and_the_agent_decide_nothing(stack: Stack, operator: Client) -> None:
    submitter, _, _ = await person(stack, operator, *DECIDES)
    other, _, _ = await person(stack, operator)
    agent, identity, _ = await person(stack, operator, *DECIDES, named="agent:refunds")
    plugin = await asking(stack, operator, deployment={"identity": identity})
    job, request = await waiting_job(submitter, plugin)
    for own in (submitter, agent):
        assert problem(await own.decide(job, request, "approve")) == (403, "self-approval")
    assert (await other.decide(job, request, "approve")).status_code == 200


async def test_a_revoked_approver_decides_nothing_and_may_read_nothing(stack: Stack, operator: Client) -> None:
    approver, _, grant_id = await person(stack, operator)
    app = stack.client("app")
    job, request = await waiting_job(app, await asking(stack, operator))
    digest = (await approver.request(job, request))["action_digest"]
    await revoke(operator, grant_id)
    for decision in ("approve", "reject"):
        refused = await approver.decide(job, request, decision, digest=digest)
        assert problem(refused) == (403, "not-permitted")
    assert problem(await approver.http.get(f"/v1/jobs/{job}/requests/{request}")) == (403, "not-permitted")
    assert ((await app.request(job, request))["state"], stack.effects.calls("pay", job=job)) == ("pending", [])


async def test_a_vote_counts_only_while_who_gave_it_may_decide(stack: Stack, operator: Client) -> None:
    app = stack.client("app")
    (first, one, grant_id), (second, two, _), (third, three, _) = [await person(stack, operator) for _ in range(3)]
    job, request = await waiting_job(app, await asking(stack, operator, approval={"quorum": 2}))
    since = await audit_end(operator)
    assert (await first.decide(job, request, "approve")).json()["votes"] == 1
    await revoke(operator, grant_id)
    answer = await second.decide(job, request, "approve")
    assert (answer.status_code, answer.json()["state"], answer.json()["votes"]) == (200, "pending", 1)
    shown = await app.request(job, request)
    assert {vote["principal"]: vote["counts"] for vote in shown["votes"]} == {one: False, two: True}
    assert stack.effects.calls("pay", job=job) == []
    decided = await third.decide(job, request, "approve")
    assert (decided.json()["state"], decided.json()["decided_by"]) == ("approved", [two, three])
    assert (await app.until_ended(job))["status"] == "succeeded"
    assert len(stack.effects.calls("pay", job=job)) == 1
    lines = [line for line in await audit_of(operator, since) if line["subject"] == f"{job}/{request}"]
    assert [(line["action"], line["actor"]) for line in lines] == [
        ("request.voted", one),
        ("request.voted", two),
        ("request.voted", three),
        ("request.decided", three),
    ]
    assert lines[-1]["detail"]["decided_by"] == [two, three]


async def test_refusals_come_in_the_order_of_the_contract(stack: Stack, operator: Client) -> None:
    """Every fault at once; mending the first one shows the next."""
    app, name, _ = await person(stack, operator, *DECIDES)
    other, _, _ = await person(stack, operator, groups=["finance"])
    plugin = await asking(stack, operator, approval={"groups": ["finance"]})
    job, request = await waiting_job(app, plugin)
    digest = (await app.request(job, request))["action_digest"]
    wrong = {"decision": "approve", "action_digest": "sha256:" + "0" * 64}
    stranger, in_groups = stack.client("operator"), stack.client(name, groups=["finance"])
    steps: list[tuple[Client, str, Json, tuple[int, str]]] = [
        (stranger, "nothing", {**wrong, "decision": "maybe"}, (422, "input-invalid")),
        (stack.client(name, scopes=["jobs:read"]), "nothing", wrong, (403, "not-permitted")),
        (stranger, "nothing", wrong, (403, "not-permitted")),
        (app, "nothing", wrong, (404, "not-found")),
        (app, job, wrong, (403, "not-an-approver")),
        (in_groups, job, wrong, (403, "self-approval")),
        (other, job, wrong, (412, "action-digest-mismatch")),
    ]
    for who, where, body, expected in steps:
        assert problem(await raw_decision(who, where, request, body)) == expected, body
    assert (await operator.cancel(job)).status_code == 202
    assert problem(await raw_decision(in_groups, job, request, wrong)) == (403, "self-approval")
    assert problem(await raw_decision(other, job, request, wrong)) == (409, "request-voided")
    assert problem(await other.decide(job, request, "approve", digest=digest)) == (409, "request-voided")


async def test_whoever_is_on_call_needs_only_jobs_decide(stack: Stack, operator: Client) -> None:
    on_call, name, _ = await person(stack, operator, scopes=["jobs:decide"])
    app = stack.client("app")
    job, request = await waiting_job(app, await asking(stack, operator))
    asked = await on_call.request(job, request)
    assert (asked["args"], asked["policy"]["quorum"]) == ({"n": 1}, 1)
    for path in (f"/v1/jobs/{job}", f"/v1/jobs/{job}/events", "/v1/jobs"):
        assert problem(await on_call.http.get(path)) == (403, "not-permitted")
    given = await on_call.decide(job, request, "approve", digest=asked["action_digest"])
    assert (given.status_code, given.json()["decided_by"]) == (200, [name])
    assert (await on_call.request(job, request))["state"] == "approved"
    assert (await app.until_ended(job))["status"] == "succeeded"
