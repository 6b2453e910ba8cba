"""When an answer ends the job, and what the model is told when it does not."""

from typing import Any

import pytest
from pydantic import JsonValue

from activities.answers import Answer, Final
from activities.finals import ALONE, FinalVerdict, judge_final, offered_schema
from activities.planning import AskedCall

NUMBERED: dict[str, JsonValue] = {
    "type": "object",
    "required": ["n"],
    "properties": {"n": {"type": "integer"}},
}
LISTED: dict[str, JsonValue] = {"type": "array", "items": {"type": "integer"}}
FINAL = "final_answer"
NOT_CALLED = "Call final_answer, once and alone, to end the job."


def answer(*calls: tuple[str, Any], final: Final | None = None) -> Answer:
    return Answer(turn=1, say="", calls=tuple(AskedCall(tool, args) for tool, args in calls), final=final)


def test_without_a_schema_any_final_ends_the_job() -> None:
    assert judge_final(answer(final=Final("text")), None) == FinalVerdict(final=Final("text"))
    assert judge_final(answer((FINAL, {"n": 1})), None) == FinalVerdict()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (answer((FINAL, {"n": 1})), FinalVerdict(final=Final({"n": 1}))),
        (answer(final=Final({"n": 1})), FinalVerdict(final=Final({"n": 1}))),
        (
            answer((FINAL, {"n": "x"})),
            FinalVerdict(fault="at /n: must be integer", notes={1: "Not accepted: at /n: must be integer"}),
        ),
        (answer(final=Final({"n": "x"})), FinalVerdict(fault="at /n: must be integer")),
        (
            answer((FINAL, None)),
            FinalVerdict(fault="at /: must be object", notes={1: "Not accepted: at /: must be object"}),
        ),
        (answer(), FinalVerdict(fault=NOT_CALLED)),
        (answer((FINAL, {"n": 1}), (FINAL, {"n": 1})), FinalVerdict(fault=NOT_CALLED, notes={1: ALONE, 2: ALONE})),
        (answer(("t", {}), (FINAL, {"n": 1})), FinalVerdict(notes={2: ALONE})),
        (answer(("t", {})), FinalVerdict()),
    ],
)
def test_with_a_schema_the_end_is_one_fitting_final_answer(given: Answer, expected: FinalVerdict) -> None:
    assert judge_final(given, NUMBERED) == expected


def test_a_schema_that_is_no_object_is_wrapped_for_the_provider_and_unwrapped_again() -> None:
    assert offered_schema(NUMBERED) == NUMBERED
    assert offered_schema(LISTED) == {"type": "object", "required": ["answer"], "properties": {"answer": LISTED}}
    assert judge_final(answer((FINAL, {"answer": [1, 2]})), LISTED).final == Final([1, 2])
    assert judge_final(answer((FINAL, {})), LISTED).fault == "at /: must be array"
