"""A result too large for a status is an artifact before its job is done, and is given out to who may read it."""

import json
import time
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest

from tests.http.jobs import plugin_of
from tests.http.submissions import refused
from tests.rig.client import Client, Json
from tests.rig.plugins import final
from tests.rig.stack import Stack
from workflows.contract.ids import sha256_of

LARGE = "x" * 100_000
SHARED = {"text": "{{ input.text }}"}


async def large_job(stack: Stack, operator: Client, app: Client) -> Json:
    """The view of a job that succeeded with a result of some 100 KB."""
    plugin = await plugin_of(stack, operator, [final(SHARED)])
    return await app.until_ended(await app.accepted(plugin, {"text": LARGE}))


async def located(who: Client, url: str) -> httpx2.Response:
    return await who.http.get(url, follow_redirects=False)


async def without_credentials(stack: Stack, address: str) -> httpx2.Response:
    async with Client(stack.apis[0].url, None) as nobody:
        return await nobody.http.get(address)


async def signed_address(who: Client, view: Json) -> str:
    answer = await located(who, view["artifacts"][0]["url"])
    assert answer.status_code == 302, answer.text
    assert answer.headers["Cache-Control"] == "private, no-store"
    return answer.headers["Location"]


async def test_a_large_result_is_delivered_as_an_artifact_and_read_back_by_its_digest(
    stack: Stack, operator: Client, app: Client
) -> None:
    view = await large_job(stack, operator, app)
    assert (view["status"], view["delivery"], view["result"]) == ("succeeded", "delivered", None)
    (artifact,) = view["artifacts"]
    assert set(artifact) == {"artifact_id", "name", "bytes", "media_type", "digest", "url"}
    assert artifact["url"] == f"/v1/artifacts/{artifact['artifact_id']}"
    assert (artifact["name"], artifact["media_type"]) == ("result.json", "application/json")
    result = await located(app, view["result_url"])
    assert (result.status_code, result.headers["Location"]) == (302, artifact["url"])
    got = await without_credentials(stack, await signed_address(app, view))
    assert got.status_code == 200
    assert got.json() == {"text": LARGE}
    assert (sha256_of(got.content), len(got.content)) == (artifact["digest"], artifact["bytes"])
    types = await app.event_types(view["job_id"])
    assert types[-2:] == ["artifact.published", "job.succeeded"]


async def test_a_small_result_is_in_the_status_and_no_artifact(stack: Stack, operator: Client, app: Client) -> None:
    plugin = await plugin_of(stack, operator, [final(SHARED)])
    view = await app.until_ended(await app.accepted(plugin, {"text": "small"}))
    assert (view["delivery"], view["artifacts"], view["result"]) == ("none", [], {"text": "small"})
    assert await app.get(view["result_url"]) == {"text": "small"}


async def test_what_is_downloaded_is_saved_and_never_shown(stack: Stack, operator: Client, app: Client) -> None:
    address = await signed_address(app, await large_job(stack, operator, app))
    got = await without_credentials(stack, address)
    assert got.headers["Content-Disposition"] == ("attachment; filename=\"result.json\"; filename*=UTF-8''result.json")
    assert got.headers["X-Content-Type-Options"] == "nosniff"
    assert got.headers["Cache-Control"] == "private, no-store"
    assert got.headers["Content-Security-Policy"] == "sandbox; default-src 'none'"


@pytest.mark.parametrize("part", ["expires", "signature", "artifact"])
async def test_an_altered_address_is_refused_without_a_word_of_why(
    stack: Stack, operator: Client, app: Client, part: str
) -> None:
    address = urlsplit(await signed_address(app, await large_job(stack, operator, app)))
    expires, signature = (parse_qs(address.query)[name][0] for name in ("expires", "signature"))
    path = address.path
    match part:
        case "expires":
            expires = str(int(expires) + 1)
        case "signature":
            signature = ("A" if signature[0] != "A" else "B") + signature[1:]
        case _:
            other = urlsplit(await signed_address(app, await large_job(stack, operator, app)))
            path = other.path
    altered = f"{path}?expires={expires}&signature={signature}"
    said = refused(await without_credentials(stack, altered), 403, "not-permitted")
    assert said["detail"] == "This address is not good (any more)."
    assert (await without_credentials(stack, address.geturl())).status_code == 200


@pytest.mark.parametrize("query", ["", "?expires=9999999999", "?expires=x&signature=%C3%A9", "?expires=-1&signature=A"])
async def test_an_address_without_a_proof_is_refused_in_the_same_words(stack: Stack, query: str) -> None:
    answer = await without_credentials(stack, f"/v1/artifacts/art_{'0' * 32}/content{query}")
    said = refused(answer, 403, "not-permitted")
    assert said["detail"] == "This address is not good (any more)."


async def test_an_address_says_that_it_is_good_for_a_minute(stack: Stack, operator: Client, app: Client) -> None:
    before = int(time.time())
    address = urlsplit(await signed_address(app, await large_job(stack, operator, app)))
    expires = int(parse_qs(address.query)["expires"][0])
    assert before < expires <= time.time() + 60


async def test_other_workspaces_and_unknown_ids_are_the_same_404(stack: Stack, operator: Client, app: Client) -> None:
    view = await large_job(stack, operator, app)
    stranger = stack.client("app", workspace="elsewhere")
    here = refused(await located(stranger, view["artifacts"][0]["url"]), 404, "not-found")
    unknown = refused(await located(app, f"/v1/artifacts/art_{'f' * 32}"), 404, "not-found")
    assert here["detail"] == unknown["detail"]
    for odd in ("art_", "..%2f..%2fkeys%2fdevelopment.pem", "art_" + "F" * 32, "%00"):
        assert (await located(app, f"/v1/artifacts/{odd}")).status_code == 404


async def test_each_address_is_authorised_anew_and_the_one_that_was_given_lives_its_minute(
    stack: Stack, operator: Client, app: Client
) -> None:
    view = await large_job(stack, operator, app)
    reader = stack.client("artifact-reader")
    order: dict[str, Any] = {
        "principal": "artifact-reader",
        "actions": ["jobs:read"],
        "plugins": [view["plugin"]["name"]],
    }
    grant = await operator.post("/v1/grants", order, expect=201)
    address = await signed_address(reader, view)
    await operator.http.delete(f"/v1/grants/{grant['grant_id']}")
    refused(await located(reader, view["artifacts"][0]["url"]), 403, "not-permitted")
    assert (await without_credentials(stack, address)).status_code == 200


async def test_scope_and_grant_are_both_needed(stack: Stack, operator: Client, app: Client) -> None:
    view = await large_job(stack, operator, app)
    url = view["artifacts"][0]["url"]
    refused(await located(stack.client("app", scopes=["jobs:cancel"]), url), 403, "not-permitted")
    refused(await located(stack.client("nobody"), url), 403, "not-permitted")
    async with Client(stack.apis[0].url, None) as nobody:
        refused(await nobody.http.get(url), 401, "unauthenticated")


async def test_equal_results_of_two_jobs_are_two_artifacts(stack: Stack, operator: Client, app: Client) -> None:
    first, second = await large_job(stack, operator, app), await large_job(stack, operator, app)
    assert first["artifacts"][0]["digest"] == second["artifacts"][0]["digest"]
    assert first["artifacts"][0]["artifact_id"] != second["artifacts"][0]["artifact_id"]
    assert json.loads((await without_credentials(stack, await signed_address(app, second))).content) == {"text": LARGE}
