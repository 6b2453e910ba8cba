"""The table of further attempts: every kind, every code, every attempt."""

from itertools import product
from typing import Literal

import pytest

from workflows.contract.errors import StepCode
from workflows.contract.job import EffectClass
from workflows.policy.attempts import next_delay

Kind = Literal["model"] | EffectClass
KINDS: tuple[Kind, ...] = ("model", "read", "idempotent_write", "write")

AGAIN = {"unavailable", "rate_limited", "connect_refused", "stale", "ledger_unavailable", "blobs_unavailable", "lost"}
WRITE_AGAIN = AGAIN - {"unavailable", "rate_limited"}
DELAY = {1: 1.0, 2: 2.0, 3: 4.0, 4: None, 5: None}


@pytest.mark.parametrize(("kind", "code"), list(product(KINDS, StepCode)))
def test_table(kind: Kind, code: StepCode) -> None:
    again = WRITE_AGAIN if kind == "write" else AGAIN
    for attempt, delay in DELAY.items():
        expected = delay if code.value in again else None
        assert next_delay(kind, code, attempt, None, 3600) == expected


@pytest.mark.parametrize(
    ("attempt", "retry_after_s", "remaining_s", "expected"),
    [
        (1, 30, 3600, 30),
        (1, 0.2, 3600, 1.0),
        (3, 3, 3600, 4.0),
        (1, 30, 30, None),
        (1, 30, 30.1, 30),
        (1, 3600, 60, None),
        (4, 1, 3600, None),
        (1, None, 1.0, None),
        (1, None, 1.1, 1.0),
        (1, -5, 60, 1.0),
        (1, float("inf"), 60, None),
    ],
)
def test_retry_after_counts_where_it_fits_the_deadline(
    attempt: int, retry_after_s: float | None, remaining_s: float, expected: float | None
) -> None:
    assert next_delay("model", StepCode.RATE_LIMITED, attempt, retry_after_s, remaining_s) == expected
