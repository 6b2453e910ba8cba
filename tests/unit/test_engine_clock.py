"""The engine's clock in a worker: whatever this machine's clock says, and however late an attempt comes."""

from datetime import UTC, datetime, timedelta

import pytest

from gateway.calls.engine_clock import AGREE, REMEMBERED, EngineClock

HOUR = timedelta(hours=1)
CLOSE = timedelta(seconds=0.5)


def near(one: datetime, other: datetime) -> bool:
    return abs(one - other) < CLOSE


def test_before_the_first_attempt_it_is_this_machines_time() -> None:
    clock = EngineClock()
    assert near(clock.now(), datetime.now(UTC))
    assert not clock.differs


@pytest.mark.parametrize("skew", [HOUR, -HOUR, 2 * AGREE, -2 * AGREE])
def test_where_the_clocks_differ_the_engines_counts(skew: timedelta) -> None:
    clock = EngineClock()
    clock.heard(datetime.now(UTC) + skew)
    assert clock.differs
    assert near(clock.now(), datetime.now(UTC) + skew)


def test_where_they_agree_this_machines_is_read() -> None:
    clock = EngineClock()
    clock.heard(datetime.now(UTC) + AGREE / 2)
    assert not clock.differs
    assert near(clock.now(), datetime.now(UTC))


def test_an_attempt_that_comes_late_sets_no_clock_back() -> None:
    """Of a worker that stood still, or a machine that was busy."""
    clock = EngineClock()
    clock.heard(datetime.now(UTC))
    clock.heard(datetime.now(UTC) - HOUR)
    assert not clock.differs
    assert near(clock.now(), datetime.now(UTC))


def test_an_engine_whose_clock_was_set_back_is_followed_in_a_while() -> None:
    clock = EngineClock()
    clock.heard(datetime.now(UTC) + HOUR)
    for _ in range(REMEMBERED):
        clock.heard(datetime.now(UTC))
    assert not clock.differs
