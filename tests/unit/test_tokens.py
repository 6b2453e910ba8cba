"""Bearer tokens: only a whole, current token of ours names a caller, and every other gets the same answer."""

import base64
import json
import stat
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

from gateway.scopes import EVERY_SCOPE, Caller
from gateway.tokens import DevelopmentKey, TokenVerifier, VerifyingKey, bearer_of
from tests.rig.waiting import wait_until
from workflows.contract.errors import ProblemCode, Refused
from workflows.contract.ids import PrincipalId, Workspace

APP = PrincipalId("app")
DEMO = Workspace("demo")


@pytest.fixture
def key(tmp_path: Path) -> DevelopmentKey:
    return DevelopmentKey.load(tmp_path)


@pytest.fixture
def verifier(key: DevelopmentKey) -> TokenVerifier:
    return TokenVerifier(key, issuer="jobgate", audience="jobgate")


def signed(key: DevelopmentKey, **changed: Any) -> str:
    """A token of the right key whose claims are changed; None leaves one out."""
    claims: dict[str, Any] = {
        "iss": "jobgate",
        "aud": "jobgate",
        "sub": "app",
        "workspace": "demo",
        "exp": int(time.time()) + 60,
    }
    claims = {name: value for name, value in (claims | changed).items() if value is not None}
    return jwt.encode(claims, key.private, algorithm="ES256", headers={"kid": key.kid})


def encoded(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


async def verified(verifier: TokenVerifier, header: str | None) -> Caller:
    return await verifier.verify(bearer_of(header))


async def assert_refused(verifier: TokenVerifier, header: str | None) -> None:
    with pytest.raises(Refused) as refused:
        await verified(verifier, header)
    assert refused.value.code == ProblemCode.UNAUTHENTICATED
    assert refused.value.detail == "The request carries no valid bearer token."
    assert refused.value.__cause__ is None


async def test_a_minted_token_names_its_caller(key: DevelopmentKey, verifier: TokenVerifier) -> None:
    caller = await verified(verifier, "Bearer " + key.mint(APP, DEMO, scopes=["jobs:read"], groups=["finance", "ops"]))
    assert (caller.principal, caller.workspace) == (APP, DEMO)
    assert (caller.scopes, caller.groups) == (frozenset({"jobs:read"}), frozenset({"finance", "ops"}))
    assert (await verified(verifier, "bearer " + key.mint(APP, DEMO))).token_id != caller.token_id


async def test_without_scopes_every_scope_is_written_out(key: DevelopmentKey, verifier: TokenVerifier) -> None:
    token = key.mint(APP, DEMO)
    assert (await verified(verifier, f"Bearer {token}")).scopes == EVERY_SCOPE
    written = jwt.decode(token, options={"verify_signature": False})["scope"]
    assert set(written.split()) == EVERY_SCOPE


async def test_an_absent_scope_claim_means_none(key: DevelopmentKey, verifier: TokenVerifier) -> None:
    assert (await verified(verifier, "Bearer " + signed(key))).scopes == frozenset()


@pytest.mark.parametrize(
    "header", [None, "", "Bearer", "Bearer ", "Basic YTpi", "Bearer a.b.c", "Bearer \u00e9", "Bearer " + "[" * 9000]
)
async def test_a_header_without_a_token_is_refused(verifier: TokenVerifier, header: str | None) -> None:
    await assert_refused(verifier, header)


@pytest.mark.parametrize("wrong", ["{token}", "Bearer {token}x", "Bearer {token} {token}", "Basic {token}"])
async def test_a_token_in_the_wrong_dress_is_refused(key: DevelopmentKey, verifier: TokenVerifier, wrong: str) -> None:
    await assert_refused(verifier, wrong.format(token=key.mint(APP, DEMO)))


@pytest.mark.parametrize(
    "header",
    [
        {"alg": "none"},
        {"alg": "HS256"},
        {"alg": "RS256"},
        {"alg": "EdDSA"},
        {"alg": ["ES256"]},
        {"alg": "ES256", "crit": ["b64"], "b64": False},
        {"alg": "ES256", "kid": "another"},
        {"alg": "ES256", "kid": None},
        {"alg": "ES256", "kid": {}},
    ],
)
async def test_no_other_algorithm_or_key_is_taken(
    key: DevelopmentKey, verifier: TokenVerifier, header: dict[str, Any]
) -> None:
    _, claims, signature = key.mint(APP, DEMO).split(".")
    forged = encoded({"kid": key.kid} | header)
    await assert_refused(verifier, f"Bearer {forged}.{claims}.{signature}")
    await assert_refused(verifier, f"Bearer {forged}.{claims}.")


async def test_a_hostile_header_is_refused_without_a_crash(verifier: TokenVerifier) -> None:
    nested = base64.urlsafe_b64encode(b"[" * 5000).rstrip(b"=").decode()
    await assert_refused(verifier, f"Bearer {nested}.e30.x")
    await assert_refused(verifier, f"Bearer {encoded([])}.e30.x")


@pytest.mark.parametrize(
    "claims",
    [
        {"sub": None},
        {"sub": 5},
        {"sub": "a\nb"},
        {"workspace": None},
        {"workspace": "a.b"},
        {"workspace": 5},
        {"aud": "another"},
        {"aud": None},
        {"iss": "another"},
        {"iss": None},
        {"exp": None},
        {"exp": "soon"},
        {"exp": 1e400},
        {"exp": 1},
        {"nbf": 2**40},
        {"scope": ["jobs:read"]},
        {"groups": "finance"},
        {"groups": [1]},
        {"groups": ["a b"]},
    ],
)
async def test_claims_that_are_missing_or_wrong_are_refused(
    key: DevelopmentKey, verifier: TokenVerifier, claims: dict[str, Any]
) -> None:
    await assert_refused(verifier, "Bearer " + signed(key, **claims))


async def test_a_token_that_an_issuer_ahead_of_us_has_just_issued_is_good(
    key: DevelopmentKey, verifier: TokenVerifier
) -> None:
    ahead = int(time.time()) + 60
    assert (await verified(verifier, "Bearer " + signed(key, iat=ahead, exp=ahead + 60))).principal == APP
    await assert_refused(verifier, "Bearer " + signed(key, nbf=ahead, exp=ahead + 60))


async def test_another_folders_token_is_refused(tmp_path: Path, verifier: TokenVerifier) -> None:
    await assert_refused(verifier, "Bearer " + DevelopmentKey.load(tmp_path / "other").mint(APP, DEMO))


async def test_a_token_that_was_good_is_refused_once_it_expires(key: DevelopmentKey, verifier: TokenVerifier) -> None:
    header = "Bearer " + key.mint(APP, DEMO, ttl=timedelta(seconds=1))
    await verified(verifier, header)

    async def expired() -> bool:
        try:
            await verified(verifier, header)
        except Refused:
            return True
        return False

    await wait_until(expired, timeout=5)


class CountingKeys:
    """One key that can be taken away, and how often it was looked for."""

    fetched: bool | None = None

    def __init__(self, key: DevelopmentKey) -> None:
        self.key: VerifyingKey | None = key.known(key.kid)
        self.found = self.key
        self.asked = 0

    def known(self, kid: str) -> VerifyingKey | None:
        del kid
        return self.key

    async def find(self, kid: str) -> VerifyingKey:
        self.asked += 1
        self.key = self.found
        if self.key is None:
            raise LookupError(kid)
        return self.key


async def test_a_caller_in_a_hurry_is_verified_once(key: DevelopmentKey) -> None:
    keys = CountingKeys(key)
    keys.key = None
    verifier = TokenVerifier(keys, issuer="jobgate", audience="jobgate")
    token = key.mint(APP, DEMO)
    assert await verifier.verify(token) is await verifier.verify(token)
    assert keys.asked == 1


async def test_a_verified_token_is_believed_only_while_its_key_is_one(key: DevelopmentKey) -> None:
    keys = CountingKeys(key)
    verifier = TokenVerifier(keys, issuer="jobgate", audience="jobgate")
    token = key.mint(APP, DEMO)
    await verifier.verify(token)
    keys.key = keys.found = None
    await assert_refused(verifier, f"Bearer {token}")


async def test_a_key_is_used_with_its_own_algorithm_only(key: DevelopmentKey) -> None:
    keys = CountingKeys(key)
    verifier = TokenVerifier(keys, issuer="jobgate", audience="jobgate")
    await verifier.verify(key.mint(APP, DEMO))
    keys.key = keys.found = VerifyingKey(key.private.public_key(), "RS256")
    await assert_refused(verifier, "Bearer " + key.mint(APP, DEMO))


def test_the_key_is_made_once_and_only_its_owner_reads_it(tmp_path: Path, key: DevelopmentKey) -> None:
    again = DevelopmentKey.load(tmp_path)
    assert again.kid == key.kid
    found = again.known(key.kid)
    assert found is not None
    assert isinstance(found.public, EllipticCurvePublicKey)
    assert again.known("another") is None
    (file,) = (tmp_path / "keys").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_processes_that_start_together_share_one_key(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from gateway.tokens import DevelopmentKey; "
        "sys.stdout.write(DevelopmentKey.load(Path(sys.argv[1])).kid)"
    )
    running = [
        subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    kids = {process.communicate(timeout=60)[0] for process in running}
    assert kids == {DevelopmentKey.load(tmp_path).kid}
