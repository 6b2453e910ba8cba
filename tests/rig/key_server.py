"""An issuer of the tests: signing keys, tokens made with them, and a small HTTP server that publishes the keys.

It owns what is published and how often that was fetched. Whether a token is good is the gateway's to say.
"""

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from types import TracebackType
from typing import Any, Literal, Self, cast

import jwt
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1
from cryptography.hazmat.primitives.asymmetric.ec import generate_private_key as new_ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key as new_rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from tests.rig.wire import Arrival, Cut, Reply, WireServer

Algorithm = Literal["ES256", "RS256", "EdDSA"]
Json = dict[str, Any]


@dataclass(frozen=True)
class SigningKey:
    kid: str
    algorithm: Algorithm = "ES256"

    @cached_property
    def private(self) -> Any:
        match self.algorithm:
            case "ES256":
                return new_ec(SECP256R1())
            case "RS256":
                return new_rsa(65537, 2048)
            case "EdDSA":
                return Ed25519PrivateKey.generate()

    def jwk(self, **changed: Any) -> Json:
        """As it is published; None leaves a member out."""
        forms = {"ES256": ECAlgorithm, "RS256": RSAAlgorithm, "EdDSA": OKPAlgorithm}
        form = cast(Any, forms[self.algorithm])
        public: Json = form.to_jwk(self.private.public_key(), as_dict=True)
        members = {**public, "kid": self.kid, "use": "sig", "alg": self.algorithm, "key_ops": None, **changed}
        return {name: value for name, value in members.items() if value is not None}

    def token(self, principal: str = "app", *, headers: Json | None = None, **changed: Any) -> str:
        """A token that this key signs; None leaves a claim out."""
        now = int(time.time())
        claims: Json = {"iss": "jobgate", "aud": "jobgate", "sub": principal, "workspace": "demo", "exp": now + 600}
        claims = {**claims, "scope": "jobs:submit jobs:read jobs:cancel", **changed}
        claims = {name: value for name, value in claims.items() if value is not None}
        return jwt.encode(claims, self.private, algorithm=self.algorithm, headers={"kid": self.kid, **(headers or {})})


class KeyServer:
    """`async with KeyServer(key) as server`; `server.url` is the JWKS address. Serves in the running loop."""

    def __init__(self, *keys: SigningKey) -> None:
        self.fetches = 0
        self.down = False
        """Every connection is cut without an answer."""
        self.reply: Reply | None = None
        """Sent instead of the keys."""
        self.released = asyncio.Event()
        """Clear it, and answers wait until it is set."""
        self.released.set()
        self._keys: list[Json] = []
        self._server = WireServer(self._respond)
        self.url = ""
        self.publish(*keys)

    def publish(self, *keys: SigningKey | Json) -> None:
        self._keys = [key.jwk() if isinstance(key, SigningKey) else key for key in keys]

    async def __aenter__(self) -> Self:
        await self._server.start()
        self.url = f"{self._server.url}/keys.json"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._server.stop()

    async def _respond(self, arrival: Arrival) -> Reply:
        self.fetches += 1
        await self.released.wait()
        if self.down or arrival.path != "/keys.json":
            raise Cut
        return self.reply if self.reply is not None else Reply(200, key_set(self._keys))


def key_set(keys: Sequence[object]) -> bytes:
    return json.dumps({"keys": list(keys)}).encode()
