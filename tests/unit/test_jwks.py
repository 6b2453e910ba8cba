"""Published keys: which are taken, when they are fetched, and that whoever is down or hostile changes neither."""

import asyncio
import base64
import hmac
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP384R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key as new_rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from gateway import jwks
from gateway.jwks import KeysUnreadable, published_keys, read_keys
from gateway.tokens import DevelopmentKey, Keys, TokenVerifier
from tests.rig.key_server import KeyServer, SigningKey, key_set
from tests.rig.waiting import wait_until
from tests.rig.wire import Reply
from workflows.contract.errors import ProblemCode, Refused
from workflows.contract.ids import PrincipalId, Workspace

EC = SigningKey("ec-1")
RSA = SigningKey("rsa-1", "RS256")
OKP = SigningKey("okp-1", "EdDSA")
NEVER_S = 3600.0


@asynccontextmanager
async def keys_at(url: str, *, refresh_s: float = NEVER_S, own: DevelopmentKey | None = None) -> AsyncGenerator[Keys]:
    async with published_keys(url, refresh_s=refresh_s, own=own) as keys:
        yield keys


def verifier_of(keys: Keys) -> TokenVerifier:
    return TokenVerifier(keys, issuer="jobgate", audience="jobgate")


async def fetched(keys: Keys, kid: str = "ec-1") -> None:
    await wait_until(lambda: keys.known(kid), what="the first fetch")


def b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def encoded(value: Any) -> str:
    return b64(json.dumps(value).encode())


async def assert_refused(keys: Keys, token: str, code: ProblemCode = ProblemCode.UNAUTHENTICATED) -> None:
    with pytest.raises(Refused) as refused:
        await verifier_of(keys).verify(token)
    assert refused.value.code == code


# ---- which keys


@pytest.mark.parametrize("key", [EC, RSA, OKP], ids=["ES256", "RS256", "EdDSA"])
async def test_a_published_key_verifies_what_it_signed(key: SigningKey) -> None:
    async with KeyServer(key) as server, keys_at(server.url) as keys:
        await fetched(keys, key.kid)
        assert (await verifier_of(keys).verify(key.token("somebody"))).principal == "somebody"
        impostor = SigningKey(key.kid, key.algorithm)
        await assert_refused(keys, impostor.token())


def test_a_key_without_alg_and_use_is_taken_for_what_it_is() -> None:
    found = read_keys(key_set([EC.jwk(alg=None, use=None), RSA.jwk(alg=None, use=None, key_ops=["verify"])]))
    assert {kid: key.algorithm for kid, key in found.items()} == {"ec-1": "ES256", "rsa-1": "RS256"}


P384 = ECAlgorithm.to_jwk(generate_private_key(SECP384R1()).public_key(), as_dict=True)
SHORT = RSAAlgorithm.to_jwk(new_rsa(65537, 1024).public_key(), as_dict=True)
UNUSABLE: dict[str, object] = {
    "for encryption": EC.jwk(use="enc"),
    "to sign": EC.jwk(key_ops=["sign"]),
    "operations as text": EC.jwk(key_ops="verify"),
    "another type": EC.jwk(kty="RSA"),
    "type as a list": EC.jwk(kty=["EC"]),
    "another algorithm": EC.jwk(alg="RS256"),
    "a shared secret": {"kty": "oct", "k": "c2VjcmV0", "kid": "ec-1", "alg": "HS256", "use": "sig"},
    "a shared secret for ES256": {"kty": "oct", "k": "c2VjcmV0", "kid": "ec-1", "alg": "ES256", "use": "sig"},
    "none": EC.jwk(alg="none"),
    "algorithm as a list": EC.jwk(alg=["ES256"]),
    "curve": {**P384, "kid": "ec-1"},
    "curve that lies": {**P384, "kid": "ec-1", "alg": "ES256"},
    "short": {**SHORT, "kid": "ec-1"},
    "private": {**ECAlgorithm.to_jwk(EC.private, as_dict=True), "kid": "ec-1"},
    "no coordinates": EC.jwk(x=None),
    "bad coordinates": EC.jwk(x="AA"),
    "coordinates as a number": EC.jwk(x=5),
    "no key id": EC.jwk(kid=None),
    "key id as a number": EC.jwk(kid=5),
    "long key id": EC.jwk(kid="k" * 300),
    "no object": "ec-1",
    "null": None,
}


@pytest.mark.parametrize("entry", UNUSABLE.values(), ids=UNUSABLE)
def test_what_is_no_key_to_verify_with_is_left_out_and_the_others_stay(entry: object) -> None:
    assert list(read_keys(key_set([entry, OKP.jwk()]))) == ["okp-1"]


def test_an_id_that_two_keys_have_is_nobodys() -> None:
    assert list(read_keys(key_set([EC.jwk(), RSA.jwk(kid="ec-1"), OKP.jwk()]))) == ["okp-1"]


@pytest.mark.parametrize("document", [b"", b"no", b"[]", b"{}", b'{"keys": {}}', b"[" * 100_000, b"\xff"], ids=repr)
def test_what_is_no_key_set_is_no_answer(document: bytes) -> None:
    with pytest.raises(KeysUnreadable):
        read_keys(document[:100_000])


async def test_no_other_algorithm_than_the_keys_own_is_taken() -> None:
    public = EC.private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    claims = EC.token().split(".")[1]

    def forged(algorithm: str, secret: bytes | None = None) -> str:
        signed = f"{encoded({'alg': algorithm, 'kid': 'ec-1'})}.{claims}"
        return f"{signed}.{b64(hmac.digest(secret, signed.encode(), 'sha256')) if secret else ''}"

    async with KeyServer(EC, RSA) as server, keys_at(server.url) as keys:
        await fetched(keys)
        await verifier_of(keys).verify(EC.token())  # the mutant: untouched, it is let in
        await assert_refused(keys, forged("HS256", public))
        await assert_refused(keys, forged("none"))
        await assert_refused(keys, forged("None"))
        await assert_refused(keys, RSA.token(headers={"kid": "ec-1"}))
        await assert_refused(keys, EC.token(headers={"kid": "rsa-1"}))
        await assert_refused(keys, EC.token(headers={"kid": "x", "jwk": EC.jwk(), "jku": server.url}))


# ---- when they are fetched


async def test_invented_key_ids_cause_one_fetch_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    async with KeyServer(EC) as server, keys_at(server.url) as keys:
        await fetched(keys)
        for burst in range(3):
            forged = [SigningKey("ec-1").token(headers={"kid": f"x-{burst}-{number}"}) for number in range(30)]
            await asyncio.gather(*(assert_refused(keys, token) for token in forged))
            await verifier_of(keys).verify(EC.token())
        assert server.fetches == 2
        monkeypatch.setattr(jwks, "UNKNOWN_EVERY_S", 0.0)  # the mutant: without the bound they are counted
        await assert_refused(keys, EC.token(headers={"kid": "x"}))
        assert server.fetches == 3


@pytest.mark.parametrize("header", [{"kid": None}, {"kid": "k" * 300}, {"kid": "x", "alg": "HS256"}, {"alg": "none"}])
async def test_a_token_that_no_key_could_verify_causes_no_fetch(header: dict[str, Any]) -> None:
    _, claims, signature = EC.token().split(".")
    forged = encoded({"alg": "ES256", "kid": "x"} | header)
    async with KeyServer(EC) as server, keys_at(server.url) as keys:
        await fetched(keys)
        await assert_refused(keys, f"{forged}.{claims}.{signature}")
        assert server.fetches == 1


async def test_whoever_waits_shares_the_one_fetch() -> None:
    async with KeyServer(EC) as server, keys_at(server.url) as keys:
        verifier = verifier_of(keys)
        callers = await asyncio.gather(*(verifier.verify(EC.token()) for _ in range(40)))
        assert {caller.principal for caller in callers} == {"app"}
        assert server.fetches == 1
        new = SigningKey("ec-2")
        server.publish(EC, new)
        await asyncio.gather(*(verifier.verify(new.token()) for _ in range(40)))
        assert server.fetches == 2


async def test_a_caller_who_leaves_ends_nobody_elses_fetch() -> None:
    async with KeyServer(EC) as server:
        server.released.clear()
        async with keys_at(server.url) as keys:
            leaving, staying = [asyncio.create_task(verifier_of(keys).verify(EC.token())) for _ in range(2)]
            await wait_until(lambda: server.fetches == 1)
            leaving.cancel()
            await asyncio.wait({leaving})
            server.released.set()
            assert (await staying).principal == "app"
        assert server.fetches == 1


async def test_keys_are_renewed_before_anybody_asks_and_removed_ones_are_refused() -> None:
    new = SigningKey("ec-2")
    async with KeyServer(EC) as server, keys_at(server.url, refresh_s=0.05) as keys:
        await fetched(keys)
        verifier, token = verifier_of(keys), EC.token()
        await verifier.verify(token)
        server.publish(new)
        await fetched(keys, "ec-2")
        await verifier.verify(new.token())
        with pytest.raises(Refused):  # remembered, and refused all the same
            await verifier.verify(token)
        server.publish()
        await wait_until(lambda: keys.known("ec-2") is None, what="no key is published any more")


BAD = {
    "down": None,
    "500": Reply(500, key_set([RSA.jwk()])),
    "moved": Reply(302, b"", {"Location": "/keys.json"}),
    "no keys": Reply(200, b"<html>"),
    "too long": Reply(200, key_set([RSA.jwk(), "x" * jwks.MAX_BYTES])),
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
async def test_trouble_over_there_keeps_the_keys_that_are_known(bad: Reply | None) -> None:
    async with KeyServer(EC) as server, keys_at(server.url, refresh_s=0.05) as keys:
        await fetched(keys)
        server.down, server.reply = bad is None, bad
        before = server.fetches
        await wait_until(lambda: server.fetches >= before + 3, what="it is tried again")
        assert (await verifier_of(keys).verify(EC.token())).principal == "app"
        assert keys.known("rsa-1") is None
        server.down, server.reply = False, None
        server.publish(EC, RSA)
        await fetched(keys, "rsa-1")  # the mutant: what it says when it is well is taken


async def test_before_the_first_fetch_nobody_can_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jwks, "FIRST_RETRY_S", 0.05)
    async with KeyServer(EC) as server:
        server.down = True
        async with keys_at(server.url) as keys:
            await wait_until(lambda: server.fetches >= 1)
            await assert_refused(keys, EC.token(), ProblemCode.LEDGER_UNAVAILABLE)
            await assert_refused(keys, "no token at all")
            server.down = False
            await fetched(keys)
            assert (await verifier_of(keys).verify(EC.token())).principal == "app"


async def test_in_development_the_folders_key_is_taken_beside_them(tmp_path: Path) -> None:
    own = DevelopmentKey.load(tmp_path)
    token = own.mint(PrincipalId("app"), Workspace("demo"))
    async with KeyServer(EC, SigningKey(own.kid)) as server:
        async with keys_at(server.url, own=own) as keys:
            await fetched(keys)
            assert (await verifier_of(keys).verify(token)).principal == "app"
            assert (await verifier_of(keys).verify(EC.token())).principal == "app"
        async with keys_at(server.url) as keys:
            await fetched(keys)
            await assert_refused(keys, token)
