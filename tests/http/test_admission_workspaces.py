"""What belongs to another workspace is, to the byte, what does not exist."""

from typing import Any

import pytest
import pytest_asyncio

from tests.http.submissions import (
    BOTH,
    body_with,
    execution,
    give_grant,
    publish_brisk,
    refused,
    submit_bytes,
    traces,
)
from tests.http.test_admission_auth import JOB_ROUTES, NAMES, ask
from tests.rig.client import Client, fresh_key
from tests.rig.stack import Stack


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def brisk(stack: Stack) -> str:
    return await publish_brisk(stack.client("operator"), "walls-brisk")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def job(stack: Stack, brisk: str) -> str:
    """An ended job of the workspace demo."""
    app = stack.client("app")
    key = await app.accepted(brisk)
    await app.until_ended(key)
    return key


@pytest.mark.parametrize(("method", "path", "scope"), JOB_ROUTES, ids=NAMES[: len(JOB_ROUTES)])
async def test_job_of_another_workspace_is_an_unknown_one_to_the_byte(
    stack: Stack, job: str, method: str, path: str, scope: str | None
) -> None:
    await give_grant(stack, "neighbour", ("*",), ("*",), workspace="next-door")
    neighbour = stack.client("neighbour", workspace="next-door")
    same = {"X-Request-Id": "same"}
    theirs = await ask(neighbour, method, path, job=job, **same)
    unknown = await ask(neighbour, method, path, job=fresh_key(), **same)
    refused(theirs, 404, "not-found")
    assert (theirs.content, _steady(theirs)) == (unknown.content, _steady(unknown))
    # The mutant: in its own workspace the same question has another answer.
    if (method, path) == ("GET", "/v1/jobs/{job}"):
        assert (await ask(stack.client("app"), method, path, job=job)).status_code == 200
    described = await (await execution(stack, job)).describe()
    assert described.status is not None
    assert described.status.name == "COMPLETED"


async def test_plugins_and_lists_end_at_the_workspace(stack: Stack, brisk: str, job: str) -> None:
    await give_grant(stack, "neighbour", ("*",), ("*",), workspace="next-door")
    neighbour = stack.client("neighbour", workspace="next-door")
    refused(await submit_bytes(neighbour, body_with(brisk)), 404, "plugin-unknown")
    assert (await neighbour.get("/v1/jobs"))["data"] == []
    refused(await neighbour.http.get(f"/v1/plugins/{brisk}/versions"), 404, "plugin-unknown")
    refused(await neighbour.http.put(f"/v1/plugins/{brisk}/release", json={"version": "1.0.0"}), 404, "plugin-unknown")


async def test_same_key_in_two_workspaces_is_two_jobs(stack: Stack, app: Client, brisk: str) -> None:
    await give_grant(stack, "neighbour", ("*",), ("*",), workspace="next-door")
    neighbour = stack.client("neighbour", workspace="next-door")
    if (await neighbour.http.get(f"/v1/plugins/{brisk}/versions")).status_code == 404:
        await publish_brisk(neighbour, brisk)
    key = await app.accepted(brisk)
    theirs = await neighbour.submit(brisk, key=key)
    assert theirs.status_code == 202
    assert await traces(stack, key, workspace="next-door") == BOTH
    await neighbour.until_ended(key)
    await app.until_ended(key)


def _steady(response: Any) -> dict[str, str]:
    changing = {"date", "traceparent"}
    return {name: value for name, value in response.headers.items() if name.lower() not in changing}
