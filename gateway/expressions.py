"""The templates of a scripted model: texts with `{{ expressions }}`, evaluated in a small, bounded sandbox.

A text that is one expression keeps its type (compile_expression; Jinja's NativeEnvironment would turn the text "123"
into a number). Whoever may publish a plugin may write these and a worker evaluates them, so what could burn time or
memory is left out: powers, repetition, formatting, loops inside loops, assignments, macros, most methods and filters.
"""

import json
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from jinja2 import StrictUndefined, TemplateError, Undefined, nodes
from jinja2.exceptions import SecurityError
from jinja2.filters import FILTERS
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from pydantic import JsonValue

from gateway.strictjson import MAX_SAFE_INTEGER

MAX_SOURCE = 8_000
MAX_OUTPUT = 256 * 1024
"""Characters of one rendered text."""
MAX_RANGE = 1000
MAX_DEPTH = 32

_SAFE_FILTERS = [
    "abs",
    "default",
    "d",
    "dictsort",
    "first",
    "float",
    "int",
    "items",
    "last",
    "length",
    "count",
    "list",
    "lower",
    "map",
    "max",
    "min",
    "reject",
    "rejectattr",
    "reverse",
    "select",
    "selectattr",
    "sort",
    "string",
    "sum",
    "title",
    "tojson",
    "trim",
    "unique",
    "upper",
]
_SAFE_METHODS = frozenset(
    ["get", "items", "keys", "values", "lower", "upper", "strip", "split", "startswith", "endswith", "index", "count"]
)
_STATEMENTS = (nodes.Output, nodes.If, nodes.For)
_FAULTS = (
    TemplateError,
    ArithmeticError,
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
    NameError,
    RecursionError,
)
_UNCOMPILED = (TemplateError, SyntaxError, RecursionError, MemoryError, ValueError, OverflowError)


class ExpressionInvalid(ValueError):
    """A text that can not be compiled; the message is a fixed sentence."""


class EvaluationFailed(ValueError):
    """A text that has no value here: an undefined name, a forbidden operation, or nothing that JSON knows."""


def _join(values: Any, separator: str = "") -> str:
    texts = [str(value) for value in values]
    if sum(map(len, texts)) + len(texts) * len(separator) > MAX_OUTPUT:
        raise SecurityError("too long")
    return separator.join(texts)


def _round(value: float, digits: int = 0) -> float:
    if abs(digits) > 15:
        raise SecurityError("too many digits")
    return round(value, digits)


def _to_json(value: Any) -> str:
    """Jinja's own filter escapes for HTML."""
    return json.dumps(_as_json(value, 0), ensure_ascii=False)


def _range(*bounds: int) -> range:
    numbers = range(*bounds)
    if len(numbers) > MAX_RANGE:
        raise SecurityError("too many numbers")
    return numbers


_OPERATORS: Mapping[str, Callable[[Any, Any], Any]] = {
    "*": operator.mul,
    "%": operator.mod,
}


class _Sandbox(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(("**", "*", "%"))

    def __init__(self) -> None:
        # The optimizer folds constants again at every level: 200 filters in a row took it 3 s (measured).
        super().__init__(undefined=StrictUndefined, autoescape=False, cache_size=0, optimized=False)
        self.filters = {name: FILTERS[name] for name in _SAFE_FILTERS} | {
            "join": _join,
            "round": _round,
            "tojson": _to_json,
        }
        self.globals = {"range": _range}

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Arithmetic on numbers only: `*` repeats texts and `%` formats them."""
        numbers = all(isinstance(side, int | float) and abs(side) <= 2**64 for side in (left, right))
        if operator not in _OPERATORS or not numbers:
            raise SecurityError("this operation is not available")
        return _OPERATORS[operator](left, right)

    def getattr(self, obj: Any, attribute: str) -> Any:
        """A member of an object comes before a method of Python's dict: `input.items` is the caller's `items`."""
        if isinstance(obj, dict) and attribute in obj:
            return obj[attribute]  # pyright: ignore[reportUnknownVariableType]
        return super().getattr(obj, attribute)

    def is_safe_callable(self, obj: Any) -> bool:
        if obj is _range:
            return True
        owner = getattr(obj, "__self__", None)
        return isinstance(owner, str | dict | list) and getattr(obj, "__name__", "") in _SAFE_METHODS


_SANDBOX = _Sandbox()


@dataclass(frozen=True, slots=True)
class Expression:
    """A compiled text. `typed`: one expression, whose value keeps its type."""

    typed: bool
    evaluate: Callable[[Mapping[str, Any]], JsonValue]


@lru_cache(maxsize=1024)
def compile_text(text: str) -> Expression:
    """Raises ExpressionInvalid."""
    if len(text) > MAX_SOURCE:
        raise ExpressionInvalid(f"A text with expressions has at most {MAX_SOURCE} characters.")
    try:
        body = _SANDBOX.parse(text).body
        _check_statements(body, looping=False)
        source = _single_expression(text, body)
        if source is None:
            template = _SANDBOX.from_string(text)
            return Expression(False, lambda names: _rendered(template.generate(names)))
        compiled = _SANDBOX.compile_expression(source, undefined_to_none=False)
        return Expression(True, lambda names: _valued(lambda: compiled(names)))
    except ExpressionInvalid:
        raise
    except _UNCOMPILED:
        raise ExpressionInvalid("An expression can not be compiled.") from None


def _single_expression(text: str, body: list[nodes.Node]) -> str | None:
    output = body[0] if len(body) == 1 else None
    stripped = text.strip()
    if not isinstance(output, nodes.Output) or len(output.nodes) != 1 or not stripped.startswith("{{"):
        return None
    if isinstance(output.nodes[0], nodes.TemplateData) or not stripped.endswith("}}"):
        return None
    return stripped[2:-2].strip("+-") if stripped[2:3] in "+-" else stripped[2:-2].removesuffix("-")


def _check_statements(body: list[nodes.Node], *, looping: bool) -> None:
    for node in body:
        if not isinstance(node, _STATEMENTS):
            raise ExpressionInvalid("Only expressions, if and for are available.")
        if isinstance(node, nodes.If):
            for branch in (node.body, node.elif_, node.else_):
                _check_statements(list(branch), looping=looping)
        elif isinstance(node, nodes.For):
            if looping or node.recursive:
                raise ExpressionInvalid("A loop holds no other loop.")
            _check_statements(node.body, looping=True)
            _check_statements(node.else_, looping=looping)


def _rendered(pieces: Iterator[str]) -> str:
    parts: list[str] = []
    size = 0
    try:
        for piece in pieces:
            size += len(piece)
            if size > MAX_OUTPUT:
                raise EvaluationFailed("a text is too long")
            parts.append(piece)
    except EvaluationFailed:
        raise
    except _FAULTS:
        raise EvaluationFailed("an expression has no value") from None
    return "".join(parts)


def _valued(evaluate: Callable[[], Any]) -> JsonValue:
    try:
        return _as_json(evaluate(), 0)
    except EvaluationFailed:
        raise
    except _FAULTS:
        raise EvaluationFailed("an expression has no value") from None


def _as_json(value: Any, depth: int) -> JsonValue:
    """`value` if JSON has it: no method, no generator, no undefined name, no number that JSON would change."""
    if depth > MAX_DEPTH or isinstance(value, Undefined):
        raise EvaluationFailed("an expression has no value")
    match value:
        case None | bool():
            return value
        case str() if len(value) <= MAX_OUTPUT:
            return str(value)
        case int() | float() if abs(value) <= MAX_SAFE_INTEGER:
            return int(value) if value == int(value) else value
        case list() | tuple():
            return [_as_json(element, depth + 1) for element in value]  # pyright: ignore[reportUnknownVariableType]
        case dict() if all(isinstance(key, str) for key in value):  # pyright: ignore[reportUnknownVariableType]
            return {str(key): _as_json(member, depth + 1) for key, member in value.items()}  # pyright: ignore
        case _:
            raise EvaluationFailed("an expression is nothing that JSON knows")
