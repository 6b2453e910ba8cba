"""Phases go up by break-glass to live alone, for now; everything else names what is missing."""

from itertools import product

import pytest

from workflows.contract.job import PHASES, Phase
from workflows.policy.promotion import Granted, NotMet, judge


@pytest.mark.parametrize(("current", "to", "break_glass"), list(product(PHASES, PHASES, (False, True))))
def test_table(current: Phase, to: Phase, break_glass: bool) -> None:
    verdict = judge(current, to, break_glass=break_glass)
    if break_glass and to == "live" and current != "live":
        assert verdict == Granted("live")
    else:
        assert isinstance(verdict, NotMet)
        assert verdict.missing
        assert all(verdict.missing)
