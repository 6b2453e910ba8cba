"""What any model answers, in one shape, and the two built-in tools that a real model is offered."""

from dataclasses import dataclass
from decimal import Decimal

from pydantic import JsonValue

from activities.planning import AskedCall

FINAL_ANSWER = "final_answer"
WRAPPED = "answer"
"""The argument that holds a final answer whose schema is no object: providers take objects only."""


@dataclass(frozen=True, slots=True)
class Final:
    """The value that ends the job, if it fits the output schema."""

    value: JsonValue


@dataclass(frozen=True, slots=True)
class Answer:
    """One turn of a model. `turn` is the turn answered; a script may skip some. `final` stands without `calls`.

    `cost_usd` None: the price is not known. `estimated`: the model did not say what it used.
    """

    turn: int
    say: str
    calls: tuple[AskedCall, ...]
    final: Final | None
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: Decimal | None = None
    estimated: bool = False
