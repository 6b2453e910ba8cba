"""When a step that failed is tried again, and after how long: a table by effect class and code. Units: seconds.

Model, read and idempotent_write: 4 attempts, 1 2 4 s apart. A `write` is sent once: it is tried again only where the
attempt surely left nothing, or where the next attempt asks the ledger first whether anything left.
"""

from typing import Literal

from workflows.contract.errors import RETRYABLE_STEPS, StepCode
from workflows.contract.job import EffectClass

MAX_ATTEMPTS = 4
BACKOFF_S = (1.0, 2.0, 4.0)

WRITE_MAY_RETRY = frozenset(
    {StepCode.CONNECT_REFUSED, StepCode.STALE, StepCode.LOST, StepCode.LEDGER_UNAVAILABLE, StepCode.BLOBS_UNAVAILABLE}
)
"""LOST is safe: the successor's permit finds in the ledger whether the write was sent."""


def next_delay(
    kind: Literal["model"] | EffectClass,
    code: StepCode,
    attempt: int,
    retry_after_s: float | None,
    remaining_s: float,
) -> float | None:
    """Seconds until attempt `attempt + 1`, or None for no more. Retry-After counts where it fits the deadline."""
    allowed = WRITE_MAY_RETRY if kind == "write" else RETRYABLE_STEPS
    if code not in allowed or attempt >= MAX_ATTEMPTS:
        return None
    delay = max(BACKOFF_S[attempt - 1], retry_after_s or 0.0)
    return delay if delay < remaining_s else None
