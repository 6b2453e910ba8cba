"""Bearer tokens: what a JWT must hold to name a caller, and the key that development signs with.

A token that is absent, wrong, expired or from elsewhere gets one and the same answer. Keys come through `Keys`, by
key id and each for one algorithm, so that where they are published is not known here (`gateway.jwks`). API keys are
`gateway.apikeys`'s. Nothing is authorised here: see `gateway.authority`.
"""

import contextlib
import hashlib
import os
import re
import time
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, Self, cast
from uuid import uuid4

import jwt
from cryptography.hazmat.primitives.asymmetric.ec import (
    SECP256R1,
    EllipticCurvePrivateKey,
    EllipticCurvePublicKey,
    generate_private_key,
)
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from gateway.scopes import EVERY_SCOPE, Caller
from workflows.contract.errors import ProblemCode, Refused
from workflows.contract.ids import PRINCIPAL, WORKSPACE, PrincipalId, Workspace

PublicKey = EllipticCurvePublicKey | Ed25519PublicKey | RSAPublicKey
ALGORITHMS = ("ES256", "EdDSA", "RS256")
LEEWAY_S = 1
MAX_TOKEN_CHARS = 8_192
MAX_KID_CHARS = 200
GROUP = re.compile(r"[A-Za-z0-9._:@/+-]{1,120}")
_REMEMBERED = 1_024
_REMEMBERED_FOR_S = 300.0
"""A verified token is believed for so long, and only while the key that signed it is still one."""
_DEVELOPMENT_KEY = "development.pem"


@dataclass(frozen=True)
class VerifyingKey:
    """A key and the one algorithm that it may be used with: a token never chooses."""

    public: PublicKey
    algorithm: str


class Keys(Protocol):
    """The keys that tokens are signed with, by key id."""

    def known(self, kid: str) -> VerifyingKey | None:
        """As far as it is known now; asked at every request."""
        ...

    async def find(self, kid: str) -> VerifyingKey:
        """Of a key that is not known: perhaps after a look at where keys are published. Raises LookupError, or Refused
        where no key is known at all yet."""
        ...

    @property
    def fetched(self) -> bool | None:
        """Whether published keys were fetched; None where none are published."""
        ...


@dataclass(frozen=True, slots=True)
class _Verified:
    until: float
    kid: str
    key: VerifyingKey
    caller: Caller


class TokenVerifier:
    """Verifies signed tokens; remembers what it verified, so that a caller in a hurry costs one hash."""

    def __init__(self, keys: Keys, *, issuer: str, audience: str) -> None:
        self._keys = keys
        self._issuer = issuer
        self._audience = audience
        self._remembered: OrderedDict[bytes, _Verified] = OrderedDict()

    @property
    def keys_fetched(self) -> bool | None:
        return self._keys.fetched

    async def verify(self, token: str) -> Caller:
        """The caller that the token proves. Raises `Refused(UNAUTHENTICATED)`, whatever is wrong with it; 503 where
        nobody can tell yet, because no key was ever fetched."""
        name = hashlib.sha256(token.encode()).digest()
        known = self._remembered.get(name)
        now = time.time()
        if known is not None and now < known.until and self._keys.known(known.kid) == known.key:
            self._remembered.move_to_end(name)
            return known.caller
        try:
            kid = _kid_of(token)
            key = self._keys.known(kid) or await self._keys.find(kid)
            claims = self._claims(token, key)
            until = min(float(claims["exp"]), now + _REMEMBERED_FOR_S)
        except (jwt.PyJWTError, LookupError, ValueError, TypeError, OverflowError, RecursionError):
            raise unauthenticated() from None
        caller = _caller(claims, name)
        self._remembered[name] = _Verified(until, kid, key, caller)
        self._remembered.move_to_end(name)
        while len(self._remembered) > _REMEMBERED:
            self._remembered.popitem(last=False)
        return caller

    def _claims(self, token: str, key: VerifyingKey) -> dict[str, Any]:
        return jwt.decode(
            token,
            key.public,
            algorithms=[key.algorithm],
            issuer=self._issuer,
            audience=self._audience,
            leeway=LEEWAY_S,
            # When it was issued is no claim of ours: an issuer whose clock is ahead would be refused for it.
            options={"require": ["iss", "aud", "exp", "sub", "workspace"], "verify_iat": False},
        )


@dataclass(frozen=True)
class DevelopmentKey:
    """The key of one development folder: signs tokens for the command line, and is `keys` for the verifier."""

    private: EllipticCurvePrivateKey
    kid: str

    @classmethod
    def load(cls, data: Path) -> Self:
        """The folder's key; made once, readable by its owner only, also when two processes come at the same time."""
        path = data / "keys" / _DEVELOPMENT_KEY
        if not path.exists():
            _create(path)
        private = load_pem_private_key(path.read_bytes(), password=None)
        if not isinstance(private, EllipticCurvePrivateKey):
            raise ValueError("the development key is not an elliptic curve key")
        public = private.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        return cls(private, hashlib.sha256(public).hexdigest()[:16])

    @cached_property
    def _public(self) -> VerifyingKey:
        return VerifyingKey(self.private.public_key(), "ES256")

    def known(self, kid: str) -> VerifyingKey | None:
        return self._public if kid == self.kid else None

    async def find(self, kid: str) -> VerifyingKey:
        raise LookupError("unknown key id")

    @property
    def fetched(self) -> None:
        return None

    def mint(
        self,
        principal: PrincipalId,
        workspace: Workspace,
        *,
        scopes: Iterable[str] | None = None,
        groups: Iterable[str] = (),
        ttl: timedelta = timedelta(hours=1),
        issuer: str = "jobgate",
        audience: str = "jobgate",
    ) -> str:
        """A signed token. `scopes` None writes out every scope: to a verifier, absence means none."""
        now = int(time.time())
        claims = {
            "iss": issuer,
            "aud": audience,
            "sub": principal,
            "workspace": workspace,
            "scope": " ".join(sorted(EVERY_SCOPE if scopes is None else set(scopes))),
            "groups": sorted(set(groups)),
            "iat": now,
            "exp": now + int(ttl.total_seconds()),
            "jti": uuid4().hex,
        }
        return jwt.encode(claims, self.private, algorithm="ES256", headers={"kid": self.kid})


def bearer_of(header: str | None) -> str:
    """The credential of an `Authorization` header. Raises `Refused(UNAUTHENTICATED)`."""
    scheme, _, token = (header or "").partition(" ")
    token = token.strip(" ")
    if scheme.lower() != "bearer" or not token.isascii() or not 0 < len(token) <= MAX_TOKEN_CHARS:
        raise unauthenticated()
    return token


def unauthenticated() -> Refused:
    """The one answer to every credential that proves nothing."""
    return Refused(ProblemCode.UNAUTHENTICATED, "The request carries no valid bearer token.")


def _kid_of(token: str) -> str:
    """A token that no key could verify asks for none: it must not cause a look at where keys are published."""
    header = jwt.get_unverified_header(token)
    kid = header.get("kid")
    if not isinstance(kid, str) or not 0 < len(kid) <= MAX_KID_CHARS or header.get("alg") not in ALGORITHMS:
        raise ValueError("no key of ours")
    return kid


def _caller(claims: dict[str, Any], name: bytes) -> Caller:
    workspace, principal = claims["workspace"], claims["sub"]
    scope, groups, token_id = claims.get("scope", ""), claims.get("groups", []), claims.get("jti")
    if not isinstance(workspace, str) or not WORKSPACE.fullmatch(workspace):
        raise unauthenticated()
    if not isinstance(principal, str) or not PRINCIPAL.fullmatch(principal):
        raise unauthenticated()
    if not isinstance(scope, str) or not isinstance(groups, list):
        raise unauthenticated()
    names = [group for group in cast(list[object], groups) if isinstance(group, str) and GROUP.fullmatch(group)]
    if len(names) != len(cast(list[object], groups)):
        raise unauthenticated()
    return Caller(
        principal=PrincipalId(principal),
        workspace=Workspace(workspace),
        scopes=frozenset(scope.split()),
        groups=frozenset(names),
        token_id=token_id if isinstance(token_id, str) and GROUP.fullmatch(token_id) else name.hex()[:16],
    )


def _create(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    pem = generate_private_key(SECP256R1()).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    draft = path.with_name(f".{path.name}.{uuid4().hex}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(pem)
            file.flush()
            os.fsync(file.fileno())
        # Linking, unlike renaming, never replaces: the first process's key is everybody's.
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
    finally:
        draft.unlink()
