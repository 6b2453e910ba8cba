"""Phases go up one rung at a time with what was recorded of this digest, and down or by break-glass at once."""

from datetime import UTC, datetime, timedelta
from itertools import product

import pytest

from workflows.contract.gates import PHASES, Phase
from workflows.policy.promotion import NEEDS, SMOKE_IS_FRESH_FOR, Granted, NotMet, Recorded, judge, judge_demotion

NOW = datetime(2030, 1, 2, tzinfo=UTC)
ALL = Recorded(smoke=NOW, dry_run=NOW, simulation=NOW, packet=NOW)
FIELDS = ("smoke", "dry_run", "simulation", "packet")
ENOUGH: dict[Phase, set[str]] = {
    "stateful_noop": {"smoke"},
    "live_canary": {"dry_run", "simulation"},
    "live": {"packet"},
}


SUBSETS = [{name for name, on in zip(FIELDS, bits, strict=True) if on} for bits in product((0, 1), repeat=4)]


@pytest.mark.parametrize("which", SUBSETS, ids=lambda which: "+".join(sorted(which)) or "nothing")
@pytest.mark.parametrize(("current", "to", "break_glass"), list(product(PHASES, PHASES, (False, True))))
def test_the_whole_table(current: Phase, to: Phase, break_glass: bool, which: set[str]) -> None:
    recorded = Recorded(**dict.fromkeys(which, NOW))
    verdict = judge(current, to, break_glass=break_glass, recorded=recorded, now=NOW)
    rungs = PHASES.index(to) - PHASES.index(current)
    if rungs > 0 and (break_glass or (rungs == 1 and ENOUGH[to] <= which)):
        assert verdict == Granted(to)
        return
    assert isinstance(verdict, NotMet)
    assert verdict.missing
    if rungs > 0:
        asked = [
            need.missing for rung in PHASES[PHASES.index(current) + 1 : PHASES.index(to) + 1] for need in NEEDS[rung]
        ]
        assert [one for one in verdict.missing if one in asked] == [one for one in asked if one in verdict.missing]
        assert (rungs > 1) == verdict.missing[0].startswith("one rung at a time")


@pytest.mark.parametrize(
    ("age", "fresh"),
    [(timedelta(0), True), (SMOKE_IS_FRESH_FOR, True), (SMOKE_IS_FRESH_FOR + timedelta(microseconds=1), False)],
)
def test_a_green_smoke_is_believed_for_an_hour(age: timedelta, fresh: bool) -> None:
    verdict = judge("blocked_noop", "stateful_noop", break_glass=False, recorded=Recorded(smoke=NOW - age), now=NOW)
    assert (verdict == Granted("stateful_noop")) is fresh


def test_a_skipped_rung_is_told_what_every_rung_asks_for() -> None:
    verdict = judge("blocked_noop", "live", break_glass=False, recorded=Recorded(), now=NOW)
    assert isinstance(verdict, NotMet)
    assert len(verdict.missing) == 1 + sum(len(needs) for needs in NEEDS.values())


@pytest.mark.parametrize(("current", "to"), list(product(PHASES, PHASES)))
def test_a_demotion_goes_down_and_nowhere_else(current: Phase, to: Phase) -> None:
    verdict = judge_demotion(current, to)
    assert (verdict == Granted(to)) is (PHASES.index(to) < PHASES.index(current))
