"""Who is calling, and may they: said by every route before anything is looked up, and never of another workspace."""

import base64
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import jwt
import pytest
import pytest_asyncio
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key

from gateway.scopes import EVERY_SCOPE
from gateway.tokens import DevelopmentKey
from tests.http.submissions import (
    BOTH,
    CANARY,
    NONE,
    body_with,
    give_grant,
    publish_brisk,
    refused,
    submit_bytes,
    traces,
)
from tests.rig.client import Client, fresh_key
from tests.rig.stack import Stack

JOB_ROUTES = [
    ("GET", "/v1/jobs/{job}", "jobs:read"),
    ("GET", "/v1/jobs/{job}?after=0", "jobs:read"),
    ("GET", "/v1/jobs/{job}/events", "jobs:read"),
    ("GET", "/v1/jobs/{job}/result", "jobs:read"),
    ("POST", "/v1/jobs/{job}/cancel", "jobs:cancel"),
    ("GET", "/v1/jobs/{job}/requests/r1-000000", None),
    ("POST", "/v1/jobs/{job}/requests/r1-000000/decision", "jobs:decide"),
]
"""Routes of one job, with the scope that each needs (None: jobs:read or jobs:decide)."""
OTHER_ROUTES = [
    ("POST", "/v1/jobs", "jobs:submit"),
    ("GET", "/v1/jobs", "jobs:read"),
    ("GET", "/v1/requests", None),
    ("POST", "/v1/plugins", "plugins:publish"),
    ("GET", "/v1/plugins/{plugin}/versions", "operator:read"),
    ("GET", "/v1/plugins/{plugin}/releases", "operator:read"),
    ("PUT", "/v1/plugins/{plugin}/deployment", "releases:write"),
    ("PUT", "/v1/plugins/{plugin}/release", "releases:write"),
    ("POST", "/v1/plugins/{plugin}/versions/1.0.0/promotions", "promotions:write"),
    ("POST", "/v1/runtime/promotions", "promotions:write"),
    ("GET", "/metrics", "operator:read"),
]
ROUTES = [*JOB_ROUTES, *OTHER_ROUTES]
NAMES = [f"{method} {path}" for method, path, _ in ROUTES]
BODIES: dict[str, Any] = {
    "/v1/plugins": {
        "files": {
            "plugin.yaml": "{name: auth-other, version: '1', description: x, instructions: x.md}",
            "x.md": "Do nothing.",
        }
    },
    "/v1/plugins/{plugin}/deployment": {"plugin": "auth-brisk", "model": "scripted:script.yaml"},
    "/v1/plugins/{plugin}/release": {"version": "1.0.0"},
    "/v1/plugins/{plugin}/versions/1.0.0/promotions": {"to": "live", "break_glass": {"reason": "a test"}},
    "/v1/runtime/promotions": {"to": "live", "break_glass": {"reason": "a test"}},
    "/v1/jobs": {"plugin": "auth-brisk", "input": {"canary": CANARY}},
    "/v1/jobs/{job}/requests/r1-000000/decision": {"decision": "approve", "action_digest": "sha256:" + "0" * 64},
}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def brisk(stack: Stack) -> str:
    return await publish_brisk(stack.client("operator"), "auth-brisk")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def job(stack: Stack, brisk: str) -> str:
    """An ended job of the workspace demo."""
    app = stack.client("app")
    key = await app.accepted(brisk)
    await app.until_ended(key)
    return key


async def ask(client: Client, method: str, path: str, *, job: str = "k", key: str = "k", **headers: str) -> Any:
    target = path.format(job=job, plugin="auth-brisk")
    content = json.dumps(BODIES.get(path, {})).encode() if method != "GET" else None
    sent = {"Content-Type": "application/json", "Idempotency-Key": key, **headers}
    return await client.http.request(method, target, content=content, headers=sent)


# ---- 401


def _tokens(stack: Stack) -> dict[str, str]:
    """Authorization headers that prove nothing."""
    now = int(datetime.now(UTC).timestamp())
    ours = DevelopmentKey.load(stack.data)
    claims = {"iss": "jobgate", "aud": "jobgate", "sub": "app", "workspace": "demo", "exp": now + 600}
    claims |= {"scope": "jobs:submit jobs:read jobs:cancel"}

    def signed(key: Any = ours.private, algorithm: str = "ES256", kid: str | None = ours.kid, **changed: Any) -> str:
        body = {name: value for name, value in {**claims, **changed}.items() if value is not None}
        return "Bearer " + jwt.encode(body, key, algorithm=algorithm, headers={"kid": kid} if kid else {})

    def encoded(value: Any) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

    good = signed()
    return {
        "": "",
        "no scheme": good.removeprefix("Bearer "),
        "basic": "Basic " + base64.b64encode(b"app:app").decode(),
        "no token": "Bearer",
        "two words": good + " x",
        "garbage": "Bearer " + CANARY,
        "another key": signed(generate_private_key(SECP256R1())),
        "unknown key id": signed(kid="0" * 16),
        "no key id": signed(kid=None),
        "shared secret": signed("k" * 32, "HS256"),
        "alg none": f"Bearer {encoded({'alg': 'none', 'typ': 'JWT', 'kid': ours.kid})}.{encoded(claims)}.",
        "cut signature": good[:-4],
        "expired": signed(exp=now - 60),
        "no expiry": signed(exp=None),
        "not yet": signed(nbf=now + 600),
        "issuer": signed(iss="another"),
        "audience": signed(aud="another"),
        "no workspace": signed(workspace=None),
        "workspace with a dot": signed(workspace="de.mo"),
        "no subject": signed(sub=None),
        "scope as a list": signed(scope=["jobs:read"]),
    }


@pytest.mark.parametrize(("method", "path", "scope"), ROUTES, ids=NAMES)
async def test_route_without_a_credential_is_401(stack: Stack, method: str, path: str, scope: str | None) -> None:
    async with Client(stack.apis[0].url, None) as nobody:
        response = await ask(nobody, method, path)
    refused(response, 401, "unauthenticated")
    assert response.headers["WWW-Authenticate"].startswith("Bearer")


async def test_credential_that_proves_nothing_is_401_whatever_is_wrong(stack: Stack, job: str) -> None:
    answers: set[str] = set()
    async with Client(stack.apis[0].url, None) as nobody:
        for name, header in _tokens(stack).items():
            response = await nobody.http.get(f"/v1/jobs/{job}", headers={"Authorization": header})
            document = refused(response, 401, "unauthenticated")
            assert response.headers["WWW-Authenticate"].startswith("Bearer"), name
            assert header.removeprefix("Bearer ")[:12] not in response.text or not header, name
            answers.add(json.dumps({**document, "instance": ""}))
        good = {"Authorization": f"Bearer {stack.token('app')}"}
        twice = [("Authorization", good["Authorization"])] * 2
        refused(await nobody.http.get(f"/v1/jobs/{job}", headers=twice), 401, "unauthenticated")
        assert (await nobody.http.get(f"/v1/jobs/{job}", headers=good)).status_code == 200
    assert len(answers) == 1


async def test_token_expires_while_the_gateway_runs(stack: Stack, job: str) -> None:
    # It is remembered, but not beyond its expiry (a second of leeway).
    async with Client(stack.apis[0].url, stack.token("app", ttl=timedelta(seconds=-1))) as late:
        refused(await late.http.get(f"/v1/jobs/{job}"), 401, "unauthenticated")


@pytest.mark.parametrize("path", ["/livez", "/readyz"])
async def test_health_needs_no_credential(stack: Stack, path: str) -> None:
    async with Client(stack.apis[0].url, None) as nobody:
        assert (await nobody.http.get(path)).status_code == 200


# ---- 403


@pytest.mark.parametrize(("method", "path", "scope"), ROUTES, ids=NAMES)
async def test_route_needs_its_scope_in_the_token(
    stack: Stack, job: str, method: str, path: str, scope: str | None
) -> None:
    key = fresh_key()
    lacking = EVERY_SCOPE - ({"jobs:read", "jobs:decide"} if scope is None else {scope})
    refused(await ask(stack.client("operator", scopes=lacking), method, path, job=job, key=key), 403, "not-permitted")
    assert await traces(stack, key) == NONE


@pytest.mark.parametrize(("method", "path", "scope"), ROUTES, ids=NAMES)
async def test_route_needs_a_grant_beside_the_scope(
    stack: Stack, job: str, method: str, path: str, scope: str | None
) -> None:
    key = fresh_key()
    refused(await ask(stack.client("stranger"), method, path, job=job, key=key), 403, "not-permitted")
    assert await traces(stack, key) == NONE


async def test_grant_on_another_plugin_or_for_another_action_is_none(stack: Stack, brisk: str, job: str) -> None:
    await give_grant(stack, "narrow", ("jobs:submit",), ("another-plugin",))
    await give_grant(stack, "reader", ("jobs:read",), (brisk,))
    key = fresh_key()
    for principal in ("narrow", "reader"):
        refused(await submit_bytes(stack.client(principal), body_with(brisk), key), 403, "not-permitted")
    refused(await stack.client("narrow").http.get(f"/v1/jobs/{job}"), 403, "not-permitted")
    refused(await stack.client("reader").cancel(job), 403, "not-permitted")
    assert await traces(stack, key) == NONE
    # The mutant: with the grant it goes through, and the witness sees it.
    await give_grant(stack, "reader", ("jobs:submit",), (brisk,))
    assert (await submit_bytes(stack.client("reader"), body_with(brisk), key)).status_code == 202
    assert await traces(stack, key) == BOTH


async def test_expired_grant_is_none(stack: Stack, brisk: str) -> None:
    past = datetime.now(UTC) - timedelta(seconds=1)
    await give_grant(stack, "lapsed", ("*",), ("*",), expires_at=past)
    refused(await submit_bytes(stack.client("lapsed"), body_with(brisk)), 403, "not-permitted")


async def test_refusal_of_a_caller_without_a_grant_tells_nothing_of_plugins(stack: Stack, brisk: str) -> None:
    stranger = stack.client("stranger")
    known = refused(await submit_bytes(stranger, body_with(brisk)), 403, "not-permitted")
    unknown = refused(await submit_bytes(stranger, body_with("no-such-plugin")), 403, "not-permitted")
    assert {**known, "instance": ""} == {**unknown, "instance": ""}


async def test_limits_of_the_grant_bind(stack: Stack, brisk: str) -> None:
    await give_grant(stack, "bounded", ("jobs:submit",), (brisk,), limits={"max_duration_seconds": 60, "max_steps": 2})
    bounded = stack.client("bounded")
    refused(await submit_bytes(bounded, body_with(brisk, timeout_seconds=61)), 422, "limit-exceeded")
    refused(await submit_bytes(bounded, body_with(brisk, budget={"max_steps": 3})), 422, "limit-exceeded")
    receipt = (await bounded.submit(brisk)).json()
    lasts = datetime.fromisoformat(receipt["deadline"]) - datetime.fromisoformat(receipt["accepted_at"])
    assert lasts == timedelta(seconds=60)
