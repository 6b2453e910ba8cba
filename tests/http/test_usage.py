"""Usage per principal: whose bill one may read, over which time, and that money is added up exactly."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from gateway.ledger.spending import Spent, record_spent
from tests.http.jobs import plugin_of
from tests.http.submissions import ledger_of, publish_brisk, refused
from tests.rig.client import Client, Json
from tests.rig.plugins import call, final, fresh_name, tool, turn
from tests.rig.stack import Stack
from workflows.contract.ids import JobId, PluginName, PrincipalId, Workspace

NOON = datetime(2031, 3, 1, 12, tzinfo=UTC)
DAY = timedelta(days=1)


async def spend(
    stack: Stack, job: str, principal: str, *, step: int = 1, attempt: int = 1, cost: str = "0", at: datetime = NOON
) -> None:
    spent = Spent(
        workspace=Workspace("demo"),
        job_id=JobId(job),
        step=step,
        attempt=attempt,
        principal=PrincipalId(principal),
        plugin=PluginName("p"),
        kind="model",
        input_tokens=10,
        output_tokens=3,
        cost_usd=Decimal(cost),
        estimated=False,
        at=at,
    )
    async with ledger_of(stack) as ledger:
        await ledger.write(lambda conn: record_spent(conn, spent))


async def bill(client: Client, principal: str, since: datetime, until: datetime) -> Json | None:
    asked = {"from": since.isoformat(), "to": until.isoformat()}
    rows = (await client.get("/v1/usage", params=asked))["data"]
    return next((row for row in rows if row["principal"] == principal), None)


async def test_steps_tokens_and_money_of_a_principal_add_up(stack: Stack, operator: Client, app: Client) -> None:
    plugin, principal = await publish_brisk(operator, fresh_name("use")), fresh_name("payer")
    jobs = [await app.accepted(plugin) for _ in range(2)]
    await spend(stack, jobs[0], principal, step=101, cost="0.1")
    await spend(stack, jobs[0], principal, step=101, attempt=2, cost="0.2")
    await spend(stack, jobs[0], principal, step=102, cost="0.0001")
    await spend(stack, jobs[1], principal, step=101, cost="0.7", at=NOON + DAY)
    assert await bill(operator, principal, NOON, NOON + 2 * DAY) == {
        "principal": principal,
        "jobs": 2,
        "steps": 3,
        "input_tokens": 40,
        "output_tokens": 12,
        "cost_usd": "1.0001",
    }
    until_then = await bill(operator, principal, NOON, NOON + DAY)
    assert until_then is not None
    assert (until_then["jobs"], until_then["cost_usd"]) == (1, "0.3001")
    assert await bill(operator, principal, NOON + 2 * DAY, NOON + 3 * DAY) is None


async def test_one_reads_ones_own_bill_and_operators_read_all(stack: Stack, operator: Client, app: Client) -> None:
    plugin = await publish_brisk(operator, fresh_name("use"))
    job = await app.accepted(plugin)
    at = NOON + 100 * DAY
    await spend(stack, job, "app", step=101, at=at)
    await spend(stack, job, "somebody", step=102, at=at)
    window = {"from": at.isoformat(), "to": (at + DAY).isoformat()}
    readers = {
        client: [row["principal"] for row in (await client.get("/v1/usage", params=window))["data"]]
        for client in (app, operator, stack.client("operator", scopes=["jobs:read"]))
    }
    assert list(readers.values()) == [["app"], ["app", "somebody"], []]
    for client in (stack.client("approver"), stack.client("stranger"), stack.client("app", scopes=["jobs:submit"])):
        refused(await client.http.get("/v1/usage"), 403, "not-permitted")


async def test_without_a_time_it_is_the_last_thirty_days(app: Client) -> None:
    answer = await app.get("/v1/usage")
    since, until = (datetime.fromisoformat(answer[name]) for name in ("from", "to"))
    assert until - since == 30 * DAY
    assert abs(datetime.now(UTC) - until) < timedelta(minutes=1)
    fixed = await app.get("/v1/usage", params={"to": NOON.isoformat()})
    assert datetime.fromisoformat(fixed["to"]) == NOON
    assert datetime.fromisoformat(fixed["from"]) == NOON - 30 * DAY


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("from=2030-01-31", "from"),
        ("from=2030-01-31T12:00:00", "from"),
        ("from=2030-01-31T12:00:00+01:00", "from"),
        ("from=1900000000", "from"),
        ("from=", "from"),
        ("to=yesterday", "to"),
        ("to=2030-02-30T12:00:00Z", "to"),
        ("to=2030-01-31T12:00:60Z", "to"),
        ("from=2031-01-01T00:00:00Z&to=2030-01-01T00:00:00Z", "from"),
    ],
)
async def test_what_is_no_instant_is_refused_by_name(app: Client, query: str, field: str) -> None:
    document = refused(await app.http.get(f"/v1/usage?{query}"), 422, "input-invalid")
    assert document["detail"].startswith(f"{field}: ")


@pytest.mark.parametrize("query", ["since=2030-01-31T12:00:00Z", "from=x&from=y", "principal=app"])
async def test_other_parameters_are_refused(app: Client, query: str) -> None:
    refused(await app.http.get(f"/v1/usage?{query}"), 422, "input-invalid")


async def test_a_real_job_is_on_the_bill_of_its_principal(stack: Stack, operator: Client) -> None:
    principal = fresh_name("payer")
    grant = {"principal": principal, "actions": ["jobs:submit", "jobs:read"], "plugins": ["*"]}
    await operator.post("/v1/grants", grant, expect=201)
    used = {"input_tokens": 100, "output_tokens": 20, "cost_usd": "0.25"}
    plugin = await plugin_of(stack, operator, [turn(call("look"), usage=used), final(usage=used)], tool("look"))
    client = stack.client(principal)
    view = await client.until_ended(await client.accepted(plugin))
    [row] = (await client.get("/v1/usage"))["data"]
    assert row == {"principal": principal, "jobs": 1, **view["usage"]}
    assert Decimal(row["cost_usd"]) > 0
