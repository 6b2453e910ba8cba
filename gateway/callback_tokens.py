"""One-time tokens of callbacks: 256 random bits, and the proof of which credential went with the call.

    token = base64url(random[32] + HMAC-SHA256(key=random, credential as injected)[:16])

Who resolves the same credential can tell, before anything of the answer is kept, that it is the very value the vendor
was given, and so that scrubbing for it finds it. Only the SHA-256 of a token is stored: the proof gives nothing away
to a reader of the ledger, and the vendor knows token and credential anyway.
"""

import base64
import hmac
import re
import secrets
from hashlib import sha256

RANDOM_BYTES = 32
PROOF_BYTES = 16
_TOKEN = re.compile(r"[A-Za-z0-9_-]{64}")


def mint_token(injected: str) -> str:
    """For a call that carries `injected` in its header, prefix included; "" for a call without a credential."""
    random = secrets.token_bytes(RANDOM_BYTES)
    return base64.urlsafe_b64encode(random + _proof(random, injected)).decode()


def hash_of(token: str) -> str | None:
    """What the ledger knows of it; None for a text that no token has the form of."""
    return sha256(token.encode()).hexdigest() if _TOKEN.fullmatch(token) else None


def went_with(token: str, injected: str) -> bool:
    """Whether the call behind this token carried exactly this credential."""
    if not _TOKEN.fullmatch(token):
        return False
    raw = base64.urlsafe_b64decode(token)
    random, proof = raw[:RANDOM_BYTES], raw[RANDOM_BYTES:]
    return hmac.compare_digest(proof, _proof(random, injected))


def _proof(random: bytes, injected: str) -> bytes:
    return hmac.digest(random, injected.encode(), "sha256")[:PROOF_BYTES]
