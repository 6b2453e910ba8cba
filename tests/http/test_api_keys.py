"""API keys: shown once, refused at once, and never more than the principal that they stand for."""

import asyncio
import hashlib
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import update

from gateway.ledger.authority_tables import api_keys
from tests.http.jobs import waiting_plugin
from tests.http.submissions import CANARY, ledger_of, publish_brisk, refused
from tests.rig.client import Client, Json
from tests.rig.plugins import fresh_name
from tests.rig.stack import Stack

KEYS = "/v1/api-keys"
SUBMIT = ["jobs:submit", "jobs:read"]


async def made(operator: Client, principal: str = "app", **more: Any) -> Json:
    return await operator.post(KEYS, {"principal": principal, **more}, expect=201)


def by_key(stack: Stack, key: str) -> Client:
    return Client(stack.apis[0].url, key)


async def test_a_key_is_shown_once_and_kept_as_a_hash(stack: Stack, operator: Client) -> None:
    ends = "2031-01-31T12:00:00Z"
    response = await operator.http.post(KEYS, json={"principal": "app", "scopes": SUBMIT, "expires_at": ends})
    assert response.status_code == 201
    assert response.headers["Cache-Control"] == "no-store"
    new = response.json()
    key_id, key = new["key_id"], new.pop("key")
    assert key.startswith(f"jgk_{key_id}_")
    assert new == {
        "key_id": key_id,
        "principal": "app",
        "scopes": sorted(SUBMIT),
        "groups": [],
        "expires_at": "2031-01-31T12:00:00Z",
    }
    listed = await operator.get(KEYS)
    [row] = [each for each in listed["data"] if each["key_id"] == key_id]
    assert row == {**new, "by": "operator", "at": row["at"], "revoked_at": None}
    secret = key.rpartition("_")[2]
    assert secret not in str(listed)
    digest = hashlib.sha256(secret.encode()).hexdigest().encode()
    ledger = b"".join(file.read_bytes() for file in stack.data.glob("ledger.db*"))
    assert secret.encode() not in ledger
    assert digest in ledger  # the mutant: what is kept is found by the same search


async def test_a_key_acts_as_its_principal_and_grants_still_decide(stack: Stack, operator: Client) -> None:
    plugin = await publish_brisk(operator, fresh_name("keys-brisk"))
    async with by_key(stack, (await made(operator, "app", scopes=SUBMIT))["key"]) as app:
        job = await app.accepted(plugin)
        refused(await app.cancel(job), 403, "not-permitted")  # app's grant allows it, the key's scopes do not
    async with by_key(stack, (await made(operator, "keys-stranger"))["key"]) as stranger:
        refused(await stranger.submit(plugin), 403, "not-permitted")


async def test_a_key_without_scopes_named_has_those_of_its_maker(stack: Stack) -> None:
    maker = stack.client("operator", scopes=["grants:write", "jobs:read"])
    assert (await made(maker))["scopes"] == ["grants:write", "jobs:read"]
    refused(await maker.http.post(KEYS, json={"principal": "app", "scopes": SUBMIT}), 403, "not-permitted")


async def test_one_person_is_one_person_by_key_and_by_token(stack: Stack, operator: Client) -> None:
    """Groups of a key count, and nobody decides a request of their own job by another credential."""
    plugin = await waiting_plugin(stack, operator, approval={"groups": ["finance"], "quorum": 2})
    both = {"principal": "keys-both", "actions": ["jobs:submit", "jobs:read", "jobs:decide"], "plugins": [plugin]}
    await operator.post("/v1/grants", both, expect=201)
    app = stack.client("keys-both")
    job = await app.accepted(plugin)
    [request] = await app.until_request(job)
    path = f"/v1/jobs/{job}/requests/{request}"
    digest = (await app.get(path))["action_digest"]
    vote = {"decision": "approve", "action_digest": digest}
    async with by_key(stack, (await made(operator, "keys-both", groups=["finance"]))["key"]) as own:
        refused(await own.http.post(f"{path}/decision", json=vote), 403, "self-approval")
    approver = stack.client("approver", groups=["finance"])
    async with by_key(stack, (await made(operator, "approver", groups=["finance"]))["key"]) as same:
        first = await approver.http.post(f"{path}/decision", json=vote)
        second = await same.http.post(f"{path}/decision", json=vote)
    assert (first.status_code, second.status_code) == (200, 200)
    assert (second.json()["votes"], second.json()["state"]) == (1, "pending")
    async with by_key(stack, (await made(operator, "approver"))["key"]) as groupless:
        refused(await groupless.http.post(f"{path}/decision", json=vote), 403, "not-an-approver")
    await stack.client("app").cancel(job)


async def test_keys_that_prove_nothing_get_one_answer(stack: Stack, operator: Client) -> None:
    good, revoked, expired = [await made(operator) for _ in range(3)]
    assert (await operator.http.delete(f"{KEYS}/{revoked['key_id']}")).status_code == 200
    async with ledger_of(stack) as ledger:
        past = datetime.now(UTC) - timedelta(seconds=1)
        late = update(api_keys).where(api_keys.c.key_id == expired["key_id"]).values(expires_at=past)
        await ledger.write(lambda conn: conn.execute(late))
    prefix, key_id, secret = good["key"].split("_")
    wrong = {
        "unknown": f"{prefix}_{'0' * 24}_{secret}",
        "wrong": f"{prefix}_{key_id}_{'0' * 64}",
        "revoked": revoked["key"],
        "expired": expired["key"],
        "no secret": f"{prefix}_{key_id}_",
        "half": good["key"][:-1],
        "longer": good["key"] + "0",
        "only a prefix": "jgk_",
        "upper": good["key"].upper(),
    }
    answers: set[str] = set()
    for name, key in wrong.items():
        async with by_key(stack, key) as nobody:
            response = await nobody.http.get("/v1/jobs")
        document = refused(response, 401, "unauthenticated")
        assert response.headers["WWW-Authenticate"].startswith("Bearer"), name
        answers.add(str({**document, "instance": ""}))
    assert len(answers) == 1
    async with by_key(stack, good["key"]) as app:  # the mutant: the good one is let in
        assert (await app.http.get("/v1/jobs")).status_code == 200


async def test_a_revoked_key_is_refused_at_once_on_every_process(operator: Client, stack: Stack) -> None:
    new = await made(operator)
    async with by_key(stack, new["key"]) as app:
        assert (await app.http.get("/v1/jobs")).status_code == 200
        first = await operator.http.delete(f"{KEYS}/{new['key_id']}")
        assert first.status_code == 200
        assert first.json()["revoked_at"] is not None
        refused(await app.http.get("/v1/jobs"), 401, "unauthenticated")
    again = await operator.http.delete(f"{KEYS}/{new['key_id']}")
    assert again.json() == first.json()


async def test_a_waiting_job_ends_when_the_key_that_submitted_it_is_revoked(stack: Stack, operator: Client) -> None:
    plugin = await waiting_plugin(stack, operator)
    new, other = await made(operator), await made(operator)
    async with by_key(stack, new["key"]) as app, by_key(stack, other["key"]) as same:
        jobs = [await who.accepted(plugin) for who in (app, same, stack.client("app"))]
    reader = stack.client("app")
    for job in jobs:
        await reader.until_request(job)
    assert (await operator.http.delete(f"{KEYS}/{new['key_id']}")).status_code == 200
    ended = await reader.until_ended(jobs[0])
    assert (ended["status"], ended["failure"]["code"]) == ("failed", "authority_revoked")
    assert ended["pending"] == []
    # Jobs of the same principal by another credential go on.
    for job in jobs[1:]:
        assert (await reader.status(job))["status"] == "waiting_for_human"
        await reader.cancel(job)


async def test_a_stream_ends_when_the_key_that_reads_it_is_revoked(stack: Stack, operator: Client) -> None:
    plugin = await waiting_plugin(stack, operator)
    job = await stack.client("app").accepted(plugin)
    api = stack.add_api({"JOBGATE_STREAM_PING_S": "0.2"})
    await stack.until_ready(api)
    new, kept = await made(operator), await made(operator)
    read = asyncio.Event()

    async def until_it_ends() -> list[str]:
        seen: list[str] = []
        async with Client(api.url, new["key"]) as reader, reader.stream(job) as events:
            async for event in events:
                seen.append(event.type)
                read.set()
        return seen

    reading = asyncio.create_task(until_it_ends())
    async with Client(api.url, kept["key"]) as other, other.stream(job) as events:
        assert (await anext(events)).type == "job.queued"
        await read.wait()
        assert (await operator.http.delete(f"{KEYS}/{new['key_id']}")).status_code == 200
        async with asyncio.timeout(10):
            assert "job.queued" in await reading
        # The mutant: the other reader, whose key nobody revoked, hears the end of the job.
        await stack.client("app").cancel(job)
        assert [event.type async for event in events][-1] == "job.canceled"
    api.stop()


async def test_of_many_revocations_one_counts(operator: Client) -> None:
    new = await made(operator)
    path = f"{KEYS}/{new['key_id']}"
    answers = await asyncio.gather(*(operator.http.delete(path) for _ in range(8)))
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.text for answer in answers}) == 1


@pytest.mark.parametrize("key_id", ["0" * 24, "jgk_x", "%00", "x" * 200])
async def test_an_unknown_key_is_not_found(operator: Client, key_id: str) -> None:
    refused(await operator.http.delete(f"{KEYS}/{key_id}"), 404, "not-found")


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"principal": CANARY + "\n"},
        {"principal": 5},
        {"principal": "app", "scopes": [CANARY]},
        {"principal": "app", "scopes": "jobs:read"},
        {"principal": "app", "scopes": [1]},
        {"principal": "app", "groups": [CANARY + " x"]},
        {"principal": "app", "groups": None},
        {"principal": "app", "expires_at": "tomorrow"},
        {"principal": "app", "expires_at": 2_000_000_000},
        {"principal": "app", "expires_at": "2020-01-01T00:00:00Z"},
        {"principal": "app", CANARY: 1},
        [],
    ],
    ids=repr,
)
async def test_what_is_not_a_key_is_input_invalid(operator: Client, body: Any) -> None:
    before = await operator.get(KEYS)
    refused(await operator.http.post(KEYS, json=body), 422, "input-invalid")
    assert await operator.get(KEYS) == before


async def test_a_key_of_another_workspace_is_unknown(stack: Stack, operator: Client) -> None:
    await operator.post("/v1/workspaces", {"name": "keys-other", "admin": "boss"}, expect=201)
    boss = stack.client("boss", workspace="keys-other")
    new = await made(boss, "boss")
    assert new["key_id"] not in str(await operator.get(KEYS))
    foreign = refused(await operator.http.delete(f"{KEYS}/{new['key_id']}"), 404, "not-found")
    unknown = refused(await operator.http.delete(f"{KEYS}/{'0' * 24}"), 404, "not-found")
    assert {**foreign, "instance": ""} == {**unknown, "instance": ""}
    async with by_key(stack, new["key"]) as by:  # it works still, and in its own workspace alone
        assert (await by.get(KEYS))["data"][0]["key_id"] == new["key_id"]


async def test_who_may_write_grants_of_one_plugin_only_makes_no_keys(stack: Stack, operator: Client) -> None:
    order = {"principal": "keys-narrow", "actions": ["grants:write"], "plugins": ["one-plugin"]}
    await operator.post("/v1/grants", order, expect=201)
    narrow = stack.client("keys-narrow")
    refused(await narrow.http.post(KEYS, json={"principal": "app"}), 403, "not-permitted")
    refused(await narrow.http.get(KEYS), 403, "not-permitted")
