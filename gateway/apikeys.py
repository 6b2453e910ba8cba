"""API keys: `jgk_<id>_<secret>`, what a caller without signed tokens proves itself by.

A key acts as its principal, whose grants still decide. Only the secret's SHA-256 is kept, and it is looked up at every
request, so that a revoked key is refused at once. Unknown, wrong, revoked and expired are one and the same answer.
"""

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass, field
from datetime import UTC, datetime

from gateway.ledger.api_keys import ApiKeyRow, find_api_key
from gateway.ledger.engine import Ledger
from gateway.scopes import Caller
from gateway.tokens import unauthenticated

PREFIX = "jgk_"
KEY_ID = re.compile(r"[0-9a-f]{24}")
_KEY = re.compile(rf"{PREFIX}({KEY_ID.pattern})_([0-9a-f]{{64}})")
_NO_HASH = "0" * 64


@dataclass(frozen=True)
class Minted:
    """A new key. `text` is shown once and kept nowhere."""

    key_id: str
    text: str = field(repr=False)
    secret_hash: str


def mint_api_key() -> Minted:
    """256 random bits behind an id of 96, which names the key in answers, audit and logs."""
    key_id, secret = secrets.token_hex(12), secrets.token_hex(32)
    return Minted(key_id, f"{PREFIX}{key_id}_{secret}", _hash(secret))


def is_api_key(credential: str) -> bool:
    """Whether it is to be judged as an API key; no signed token begins like one."""
    return credential.startswith(PREFIX)


def named_in(credential: str) -> str:
    """The id that it says it has; empty where it is no key."""
    given = _KEY.fullmatch(credential)
    return "" if given is None else given.group(1)


async def prove_api_key(ledger: Ledger, credential: str) -> Caller:
    """The caller whom the key proves now. Raises `Refused(UNAUTHENTICATED)`, or 503 where the ledger is silent."""
    given = _KEY.fullmatch(credential)
    if given is None:
        raise unauthenticated()
    key_id, secret = given.groups()
    row = await ledger.read(lambda conn: find_api_key(conn, key_id))
    # Compared without a row, too: neither time nor text tells whether there is such a key.
    right = hmac.compare_digest(_hash(secret), _NO_HASH if row is None else row.secret_hash)
    if row is None or not right or not valid(row, datetime.now(UTC)):
        raise unauthenticated()
    return Caller(
        principal=row.principal,
        workspace=row.workspace,
        scopes=frozenset(row.scopes),
        groups=frozenset(row.groups),
        token_id=row.key_id,
        credential=row.key_id,
    )


def valid(row: ApiKeyRow, now: datetime) -> bool:
    return row.revoked_at is None and (row.expires_at is None or now < row.expires_at)


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
