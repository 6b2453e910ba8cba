"""script.yaml: the offline model as a list of entries, checked before anyone plays it (api.md, Files).

Entry n answers turn n and the last one repeats. An entry calls tools, or ends the job with `final`, or only says a
text, which is the final answer then, as it is of a real model. Playing it belongs to activities/scripted.py.
"""

from collections.abc import Iterator
from decimal import Decimal
from functools import lru_cache
from typing import Annotated, Self

from pydantic import AfterValidator, ConfigDict, Field, JsonValue, RootModel, model_validator

from gateway.expressions import ExpressionInvalid, compile_text
from gateway.shapes import Shape, place, shape_of
from gateway.strictyaml import Document, Path, load_yaml

MAX_ENTRIES = 2000
MAX_CALLS = 100
LONGEST_DELAY_S = 3600


def _failing(value: int) -> int:
    if not 400 <= value <= 599:
        raise ValueError("A failure has a status from 400 to 599")
    return value


class ScriptFail(Shape):
    """The model answers `status` while the attempt is at most `times`."""

    status: Annotated[int, AfterValidator(_failing)]
    times: int = Field(default=1, ge=1, le=1_000_000)


class ScriptUsage(Shape):
    """What the turn costs; what is not said costs nothing. Tokens, US dollars."""

    input_tokens: int = Field(default=0, ge=0, le=10**12)
    output_tokens: int = Field(default=0, ge=0, le=10**12)
    cost_usd: Decimal = Field(default=Decimal(0), ge=0, le=10**9)


class ScriptCall(Shape):
    tool: str = Field(min_length=1, max_length=200)
    args: dict[str, JsonValue] = Field(default_factory=dict[str, JsonValue])
    when: str | bool = True


class ScriptEntry(Shape):
    say: str | None = None
    calls: tuple[ScriptCall, ...] = Field(default=(), max_length=MAX_CALLS)
    final: JsonValue = None
    delay_seconds: float = Field(default=0, ge=0, le=LONGEST_DELAY_S)
    fail: ScriptFail | None = None
    usage: ScriptUsage = ScriptUsage()

    @model_validator(mode="after")
    def _one_answer(self) -> Self:
        if self.calls and self.ends:
            raise ValueError("An entry has calls or a final, not both")
        return self

    @property
    def ends(self) -> bool:
        return "final" in self.model_fields_set


def _some(entries: tuple[ScriptEntry, ...]) -> tuple[ScriptEntry, ...]:
    if not 1 <= len(entries) <= MAX_ENTRIES:
        raise ValueError(f"A script has 1 to {MAX_ENTRIES} entries")
    return entries


class Script(RootModel[Annotated[tuple[ScriptEntry, ...], AfterValidator(_some)]]):
    model_config = ConfigDict(frozen=True, strict=True)

    @property
    def entries(self) -> tuple[ScriptEntry, ...]:
        return self.root


@lru_cache(maxsize=64)
def parse_script(text: str, file: str = "script.yaml") -> Script:
    """Raises Refused `input-invalid` with `file` and `line`; every expression compiles."""
    document = load_yaml(text, file)
    script = shape_of(Script, document)
    for path, sentence in _faults(document):
        raise document.fault(path, f"{place(path)}: {sentence}")
    return script


def _faults(document: Document) -> Iterator[tuple[Path, str]]:
    for path, text in _texts((), document.value):
        try:
            expression = compile_text(text)
        except ExpressionInvalid as broken:
            yield path, str(broken)
            continue
        if path[-1] == "when" and path[-3] == "calls" and len(path) == 4 and not expression.typed:
            yield path, "A condition is true, false or one {{ expression }}."


def _texts(path: Path, value: JsonValue) -> Iterator[tuple[Path, str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, list):
        for index, element in enumerate(value):
            yield from _texts((*path, index), element)
    elif isinstance(value, dict):
        for key, member in value.items():
            yield from _texts((*path, key), member)
