"""The way back that a call of a callback tool carries: a token in the ledger before the first byte leaves.

The token is in the header that goes out and nowhere else; the ledger keeps its hash, and replies are scrubbed of it.
"""

import contextlib
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from urllib.parse import urlsplit

from gateway.callback_tokens import hash_of, mint_token
from gateway.calls.kinds import Prepared, Stamp
from gateway.credentials import Secret
from gateway.ledger.callbacks import NewCallback, OfCall, close_call, open_callback
from gateway.ledger.engine import Ledger
from gateway.settings import Settings
from workflows.contract.errors import Refused, StepCode, StepError

HEADER = "Jobgate-Callback"
ACCEPTED = 202
"""The status by which a tool says that it answers later."""


@dataclass(frozen=True, slots=True)
class WayBack:
    """Where the answer is awaited, and until when."""

    token: Secret
    url: str = field(repr=False)
    expires_at: datetime


class WaysBack:
    """One per process. `base` is where vendors reach the API; None: they can not."""

    def __init__(self, ledger: Ledger, base: str | None) -> None:
        self._ledger = ledger
        self._base = base

    async def open(self, prepared: Prepared, stamp: Stamp, injected: str) -> WayBack | None:
        """A new one for this sending; None for a tool that answers at once. Raises StepError `rejected`."""
        callback = prepared.tool.callback
        if callback is None:
            return None
        if self._base is None:
            raise StepError(
                StepCode.REJECTED,
                "Callback tools need JOBGATE_PUBLIC_URL: the http or https address where vendors reach the API.",
            )
        now, token = prepared.attempt.clock.now(), mint_token(injected)
        token_hash = hash_of(token)
        assert token_hash is not None
        new = NewCallback(
            **vars(of_call(prepared)),
            token_hash=token_hash,
            attempt=prepared.asked_attempt,
            tool=prepared.tool.name,
            effect_id=stamp.effect_id,
            epoch=stamp.epoch,
            opened_at=now,
            expires_at=min(now + timedelta(seconds=callback.expires_in_seconds), prepared.receipt.deadline_at),
        )
        await self._ledger.write_grouped(lambda conn: open_callback(conn, new), key=prepared.attempt.key)
        return WayBack(Secret(token), f"{self._base}/v1/callbacks/{token}", new.expires_at)

    async def close(self, prepared: Prepared) -> None:
        """The tool answered at once. A ledger that does not answer now refuses nothing later: the expiry closes too."""
        if prepared.tool.callback is None:
            return
        with contextlib.suppress(Refused):
            await self._ledger.write_grouped(
                lambda conn: close_call(conn, of_call(prepared), prepared.attempt.clock.now()), key=prepared.attempt.key
            )


def of_call(prepared: Prepared) -> OfCall:
    return OfCall(prepared.attempt.workspace, prepared.attempt.job_id, prepared.step, prepared.call)


def public_base(settings: Settings) -> str | None:
    """Where vendors reach the API: as set, else in development where it listens. None where that is no http(s) URL."""
    base = settings.public_url
    if base is None and settings.development:
        host = f"[{settings.api_host}]" if ":" in settings.api_host else settings.api_host
        base = f"http://{host}:{settings.api_port}"
    if base is None:
        return None
    parts = urlsplit(base)
    usable = parts.scheme in ("http", "https") and parts.hostname and not (parts.query or parts.fragment)
    return base.rstrip("/") if usable else None
