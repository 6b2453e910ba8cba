"""An outcome that comes late ends the question about it, also where the job was only about to ask."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.calls import permits
from gateway.calls.attempts import Attempt
from gateway.calls.permits import Permits
from workflows.contract.errors import ProblemCode, Refused
from workflows.contract.ids import EffectId

EFFECT = EffectId("eff_1")
ATTEMPT = cast("Attempt", SimpleNamespace(workspace="demo", job_id="k-1"))


def asks(effect: str, state: str = "pending") -> Any:
    request = SimpleNamespace(request_id="r1", effect_id=effect, state=state)
    return SimpleNamespace(ending=None, recorded=SimpleNamespace(view=SimpleNamespace(requests=[request])))


RUNS = SimpleNamespace(ending=None, recorded=None)
SILENT = Refused(ProblemCode.ENGINE_UNAVAILABLE, "The engine does not answer.")
ENDED = SimpleNamespace(ending="completed", recorded=None)


class Engine:
    """`describe` goes through `seen` and stays at the last; a refusal there is raised."""

    def __init__(self, *seen: Any) -> None:
        self.seen = list(seen)
        self.looks = 0
        self.hinted: list[str] = []

    async def describe(self, _workspace: str, _job: str) -> Any:
        self.looks += 1
        seen = self.seen.pop(0) if len(self.seen) > 1 else self.seen[0]
        if isinstance(seen, Refused):
            raise seen
        return seen

    async def hint_decision(self, _workspace: str, _job: str, hint: Any) -> bool:
        self.hinted.append(hint.request_id)
        return True


async def told(engine: Engine) -> Engine:
    await Permits(cast("Any", None), cast("Any", engine), cast("Any", None), 60).tell_known(ATTEMPT, EFFECT)
    return engine


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(permits, "ASKS_LOOKED_AT_EVERY_S", 0.01)


@pytest.mark.parametrize("before", [[], [RUNS, RUNS], [asks("eff_2"), asks("eff_1", "voided")], [SILENT]])
async def test_the_question_is_ended_once_it_is_asked(before: list[Any]) -> None:
    engine = await told(Engine(*before, asks("eff_1")))
    assert (engine.hinted, engine.looks) == (["r1"], len(before) + 1)


@pytest.mark.parametrize("over", [None, ENDED])
async def test_a_job_that_is_over_is_not_waited_for(over: Any) -> None:
    engine = await told(Engine(RUNS, over))
    assert (engine.hinted, engine.looks) == ([], 2)


async def test_a_job_that_asks_nobody_is_left_alone_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(permits, "ASKS_WITHIN_S", 0.1)
    engine = await told(Engine(RUNS))
    assert engine.hinted == []
    assert engine.looks > 1
