"""Published signing keys (JWKS): fetched in the background, kept while their publisher is down, and never asked twice.

A request waits for a fetch only before the first one came back, or for a key id that is not known; and all requests of
this process together cause one fetch per 30 s that way, so that invented key ids cost their inventor's time alone. What
is no public key to verify ES256, RS256 or EdDSA with is left out, and so is an id that two keys have.
"""

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from contextvars import Context
from typing import Any, cast

import httpx2
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from jwt import PyJWK, PyJWTError

from gateway.telemetry import log
from gateway.tokens import ALGORITHMS, MAX_KID_CHARS, DevelopmentKey, Keys, PublicKey, VerifyingKey
from workflows.contract.errors import JobgateError, ProblemCode, Refused

FETCH_S = 3.0
"""Shorter than the request clock, so that who waits for the first fetch hears why."""
MAX_BYTES = 256 * 1024
MAX_KEYS = 100
UNKNOWN_EVERY_S = 30.0
FIRST_RETRY_S = 1.0
LATER_RETRY_S = 15.0
RSA_BITS = range(2048, 8193)


class KeysUnreadable(JobgateError):
    """What was fetched is no key set; the text says why and holds nothing of it."""

    def __init__(self, detail: str) -> None:
        super().__init__("keys-unreadable", detail)


class PublishedKeys:
    """The keys at one URL. `keep` runs for as long as the process verifies tokens."""

    def __init__(self, http: httpx2.AsyncClient, url: str, refresh_s: float) -> None:
        self._http = http
        self._url = url
        self._refresh_s = refresh_s
        self._keys: Mapping[str, VerifyingKey] | None = None
        self._fetching: asyncio.Task[bool] | None = None
        self._asked_at: float | None = None

    def known(self, kid: str) -> VerifyingKey | None:
        return None if self._keys is None else self._keys.get(kid)

    @property
    def fetched(self) -> bool:
        return self._keys is not None

    async def find(self, kid: str) -> VerifyingKey:
        """The key, perhaps after one fetch. Raises LookupError, or Refused(503) before the first fetch has worked."""
        if self._fetching is not None:
            await self._fetched()
        if self.known(kid) is None and self._may_ask():
            await self._fetched()
        if self._keys is None:
            raise Refused(
                ProblemCode.LEDGER_UNAVAILABLE,
                "The keys that tokens are signed with could not be fetched yet, so that no token can be verified.",
                retry_after_s=1,
            )
        return self._keys[kid]

    async def keep(self) -> None:
        """Fetches at once, and then every `refresh_s` seconds: keys are renewed before anybody waits for them."""
        while True:
            if await self._fetched():
                await asyncio.sleep(self._refresh_s)
            else:
                await asyncio.sleep(FIRST_RETRY_S if self._keys is None else min(self._refresh_s, LATER_RETRY_S))

    async def close(self) -> None:
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.wait({self._fetching})

    def _may_ask(self) -> bool:
        """One fetch per `UNKNOWN_EVERY_S` for all unknown key ids; none before the first, which `keep` is at."""
        now = asyncio.get_running_loop().time()
        if self._keys is None or (self._asked_at is not None and now - self._asked_at < UNKNOWN_EVERY_S):
            return False
        self._asked_at = now
        return True

    async def _fetched(self) -> bool:
        """The fetch under way, else a new one: whoever needs it shares it, and none who leaves ends it."""
        if self._fetching is None:
            self._fetching = asyncio.create_task(self._fetch(), context=Context())
            self._fetching.add_done_callback(self._ended)
        return await asyncio.shield(self._fetching)

    def _ended(self, _fetch: "asyncio.Task[bool]") -> None:
        self._fetching = None

    async def _fetch(self) -> bool:
        """Whether the keys are now those that are published; trouble is said in the log and changes nothing."""
        try:
            async with asyncio.timeout(FETCH_S):
                keys = read_keys(await self._document())
        except Exception as error:  # noqa: BLE001 - whatever is wrong over there, what is known stays and is tried again
            reason = error.detail if isinstance(error, KeysUnreadable) else type(error).__name__
            log.warning("signing keys not fetched", reason=reason, kept=len(self._keys or ()))
            return False
        if self._keys is None or self._keys.keys() != keys.keys():
            log.info("signing keys fetched", kids=sorted(keys))
        self._keys = keys
        return True

    async def _document(self) -> bytes:
        """The body as it is sent: a compressed one could be of any size."""
        headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
        async with self._http.stream("GET", self._url, headers=headers) as response:
            if response.status_code != 200:
                raise KeysUnreadable(f"The answer was {response.status_code}.")
            body = bytearray()
            async for chunk in response.aiter_raw():
                body += chunk
                if len(body) > MAX_BYTES:
                    raise KeysUnreadable(f"The answer is longer than {MAX_BYTES} bytes.")
        return bytes(body)


class DevelopmentKeys:
    """In development the folder's key, which the command line signs with, beside those that are published."""

    def __init__(self, own: DevelopmentKey, published: PublishedKeys) -> None:
        self._own = own
        self._published = published

    def known(self, kid: str) -> VerifyingKey | None:
        return self._own.known(kid) or self._published.known(kid)

    async def find(self, kid: str) -> VerifyingKey:
        return await self._published.find(kid)

    @property
    def fetched(self) -> bool:
        return self._published.fetched


@asynccontextmanager
async def published_keys(url: str, *, refresh_s: float, own: DevelopmentKey | None) -> AsyncGenerator[Keys]:
    """Starts to fetch and does not wait for it: a process starts without its keys' publisher."""
    async with httpx2.AsyncClient(trust_env=False, follow_redirects=False, timeout=FETCH_S) as http:
        keys = PublishedKeys(http, url, refresh_s)
        keeping = asyncio.create_task(keys.keep(), context=Context())
        try:
            yield keys if own is None else DevelopmentKeys(own, keys)
        finally:
            keeping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await keeping
            await keys.close()


def read_keys(document: bytes) -> Mapping[str, VerifyingKey]:
    """The usable keys of a JWK set by id; an empty set is an answer, too. Raises KeysUnreadable."""
    try:
        value: Any = json.loads(document)
    except (ValueError, RecursionError):
        raise KeysUnreadable("The answer is not JSON.") from None
    entries: Any = cast(dict[str, Any], value).get("keys") if isinstance(value, dict) else None
    if not isinstance(entries, list):
        raise KeysUnreadable("The answer is not a JWK set.")
    listed = cast(list[object], entries)
    if len(listed) > MAX_KEYS:
        raise KeysUnreadable(f"The answer has more than {MAX_KEYS} keys.")
    named = [(_text(entry, "kid"), entry) for entry in listed]
    times = Counter(kid for kid, _ in named)
    found: dict[str, VerifyingKey] = {}
    for kid, entry in named:
        key = _key(cast(dict[str, Any], entry)) if kid is not None and times[kid] == 1 else None
        if kid is not None and key is not None:
            found[kid] = key
        else:
            log.warning("a published key is not usable", kid=kid)
    return found


def _text(entry: object, name: str) -> str | None:
    value = cast(dict[str, Any], entry).get(name) if isinstance(entry, dict) else None
    return value if isinstance(value, str) and 0 < len(value) <= MAX_KID_CHARS else None


def _key(entry: dict[str, Any]) -> VerifyingKey | None:
    """A key whose purpose, type and algorithm agree; None for any other."""
    purposes: object = entry.get("key_ops", ["verify"])
    if entry.get("use", "sig") != "sig" or not isinstance(purposes, list) or "verify" not in purposes:
        return None
    if entry.get("alg", ALGORITHMS[0]) not in ALGORITHMS:
        return None
    try:
        parsed = PyJWK(entry)
    except (PyJWTError, LookupError, ValueError, TypeError, AttributeError, OverflowError):
        return None
    public = _public(parsed.key)
    return None if public is None or parsed.algorithm_name not in ALGORITHMS else VerifyingKey(*public)


def _public(key: object) -> tuple[PublicKey, str] | None:
    """The algorithm follows from the key itself. A private key that somebody published is nobody's proof any more."""
    match key:
        case EllipticCurvePublicKey() if isinstance(key.curve, SECP256R1):
            return key, "ES256"
        case RSAPublicKey() if key.key_size in RSA_BITS:
            return key, "RS256"
        case Ed25519PublicKey():
            return key, "EdDSA"
        case _:
            return None
