"""A short run against each mutant of the product finds it out: a worker or an API in which one check is off."""

from pathlib import Path

import pytest

from tests.chaos.mutants import MUTANTS
from tests.chaos.plan import draw
from tests.chaos.running import run_plan

SECONDS = 20.0


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", MUTANTS)
async def test_a_run_against_the_mutant_turns_its_invariant_red(name: str, tmp_path: Path) -> None:
    run = await run_plan(draw(11, SECONDS), tmp_path, print, mutants=[name])
    assert MUTANTS[name].rule in {one.rule for one in run.violations}
