"""Late, repeated, contradictory and misdirected decisions: each has its own answer, for ever, and none runs a tool."""

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest

from gateway.temporal import Engine, connect
from tests.http.decisions import asking, decided_at_once, person, raw_decision
from tests.http.jobs import waiting_job
from tests.rig.client import Client, problem
from tests.rig.plugins import call, final, fresh_name, publish_plugin, turn
from tests.rig.stack import Stack
from tests.rig.waiting import wait_until
from workflows.contract.ids import JobId, Workspace

LIMITS = {"max_steps": 500, "max_duration_seconds": 3600, "max_tokens": 1_000_000}


async def test_misdirected_decisions_have_their_own_codes_and_decide_nothing(
    stack: Stack, operator: Client, app: Client, approver: Client
) -> None:
    plugin = await asking(stack, operator, call("pay", {"n": 1}), call("pay", {"n": 2}))
    job = await app.accepted(plugin)
    other_job = await app.accepted(await asking(stack, operator, call("pay", {"n": 3})))
    first, second = await app.until_request(job, count=2)
    [foreign] = await app.until_request(other_job)
    digests = {one: (await approver.request(job, one))["action_digest"] for one in (first, second)}
    table: list[tuple[str, str, str, tuple[int, str]]] = [
        (job, first, digests[second], (412, "action-digest-mismatch")),
        (job, foreign, digests[first], (404, "not-found")),
        (other_job, first, digests[first], (404, "not-found")),
        (other_job, foreign, digests[first], (412, "action-digest-mismatch")),
        (job, f"r3-{first[3:]}", digests[first], (404, "not-found")),
        (job, first.upper(), digests[first], (404, "not-found")),
        (job, f"{first}%00", digests[first], (404, "not-found")),
        (job, "٣", digests[first], (404, "not-found")),
        (f"{job}.", first, digests[first], (404, "not-found")),
    ]
    for at_job, at_request, digest, expected in table:
        body = {"decision": "approve", "action_digest": digest}
        assert problem(await raw_decision(approver, at_job, at_request, body)) == expected, (at_job, at_request)
    for at_job, requests in ((job, (first, second)), (other_job, (foreign,))):
        for request in requests:
            shown = await approver.request(at_job, request)
            assert (shown["state"], shown["votes"]) == ("pending", [])
    assert stack.effects.calls("pay", job=job) == stack.effects.calls("pay", job=other_job) == []
    assert (await approver.decide(job, first, "approve")).status_code == 200
    [sent] = await stack.effects.wait_for_calls("pay", job=job)
    assert sent.args == {"n": 1}  # the mutant: what was refused above would have shown here
    await app.cancel(job)


async def test_a_quorum_is_distinct_people_and_one_rejection_ends_it(
    stack: Stack, operator: Client, app: Client
) -> None:
    (first, one, _), (second, two, _), (third, _, _) = [await person(stack, operator) for _ in range(3)]
    job, request = await waiting_job(app, await asking(stack, operator, approval={"quorum": 3}))
    assert set(await decided_at_once(first, job, [request] * 10, "approve")) == {200}
    assert (await second.decide(job, request, "approve")).json()["votes"] == 2
    contrary = await second.decide(job, request, "reject")
    assert problem(contrary) == (409, "already-decided")
    assert (contrary.json()["record"]["state"], contrary.json()["record"]["votes"]) == ("pending", 2)
    ends = await third.decide(job, request, "reject", reason="No.")
    assert (ends.status_code, ends.json()["state"]) == (200, "rejected")
    for late in (first, second):
        refused = await late.decide(job, request, "approve")
        assert problem(refused) == (409, "already-decided")
        assert refused.json()["record"]["state"] == "rejected"
    assert (await third.decide(job, request, "reject", reason="No.")).text == ends.text
    assert (await app.until_ended(job))["status"] == "succeeded"
    assert stack.effects.calls("pay", job=job) == []
    voters = [vote["principal"] for vote in (await app.request(job, request))["votes"]]
    assert voters[:2] == [one, two]


@pytest.mark.parametrize("decision", ["approve", "reject"])
async def test_late_decisions_know_why_they_are_late(
    stack: Stack, operator: Client, app: Client, approver: Client, decision: str
) -> None:
    other, _, _ = await person(stack, operator)
    job, request = await waiting_job(app, await asking(stack, operator))
    given = await approver.decide(job, request, decision)
    opposite = "reject" if decision == "approve" else "approve"
    await app.until_ended(job)
    for who, word in ((approver, opposite), (other, opposite), (other, decision)):
        refused = await who.decide(job, request, word)
        assert problem(refused) == (409, "already-decided")
        assert refused.json()["record"] == given.json()
    assert (await approver.decide(job, request, decision)).text == given.text
    assert len(stack.effects.calls("pay", job=job)) == (decision == "approve")


async def test_a_request_can_be_read_and_its_decision_repeated_when_its_job_has_forgotten_it(
    stack: Stack, operator: Client, app: Client, approver: Client
) -> None:
    """A job remembers its last 20 closed requests; here 24 are closed when the last one opens."""
    name, turns = fresh_name("asks"), (3, 21, 1)
    script = [
        turn(*(call("ask_human", {"question": f"{at}.{n}?"}) for n in range(count))) for at, count in enumerate(turns)
    ]
    await publish_plugin(operator, name, [*script, final()], limits=LIMITS)
    job = await app.accepted(name)
    first, *rest = await app.until_request(job, count=3)
    given = await approver.decide(job, first, "reject", reason="Not now.")
    shown = await approver.request(job, first)
    for requests in (rest, ()):
        requests = requests or await app.until_request(job, count=21)
        assert set(await decided_at_once(approver, job, requests, "reject", reason="No.")) <= {200, 202}
    await app.until_request(job)
    assert await forgotten(stack, job, first)
    assert await approver.request(job, first) == shown
    assert shown["state"] == "rejected"
    again = await approver.decide(job, first, "reject", reason="Not now.")
    assert (again.status_code, again.text) == (200, given.text)
    assert problem(await approver.decide(job, first, "answer", answer="x")) == (409, "already-decided")
    await app.cancel(job)
    await app.until_ended(job)
    assert await forgotten(stack, job, first)
    assert await approver.request(job, first) == shown


async def forgotten(stack: Stack, job: str, request: str) -> bool:
    """Whether the job's own record has lost the request: without this the test above proves nothing."""
    engine = Engine(await connect(stack.settings, []), stack.settings)
    execution = await engine.describe(Workspace("demo"), JobId(job))
    assert execution is not None
    assert execution.recorded is not None
    known = [one.request_id for one in execution.recorded.view.requests]
    return len(known) > 0 and request not in known


async def test_a_purged_job_is_gone_for_its_requests_too(
    stack: Stack, operator: Client, app: Client, approver: Client
) -> None:
    job, request = await waiting_job(app, await asking(stack, operator))
    digest = (await approver.request(job, request))["action_digest"]
    await approver.decide(job, request, "reject")
    await app.until_ended(job)
    engine = await stack.engine()
    await engine.workflow_service.delete_workflow_execution(
        DeleteWorkflowExecutionRequest(
            namespace=engine.namespace, workflow_execution=WorkflowExecution(workflow_id=f"demo.{job}")
        )
    )

    async def gone() -> bool:
        return (await app.http.get(f"/v1/jobs/{job}")).status_code == 410

    await wait_until(gone, 20, what="the engine has forgotten the job")
    for again in ("approve", "reject"):
        assert problem(await approver.decide(job, request, again, digest=digest)) == (410, "job-expired")
    assert problem(await approver.http.get(f"/v1/jobs/{job}/requests/{request}")) == (410, "job-expired")
