"""JSON Schema 2020-12 for inputs, tool arguments and results: compiled once, judged without showing what was judged.

A schema stands for itself: no reference leaves it, and no other dialect is taken. Reasons name the place and the rule,
never the value; a member's name is shown only where the schema itself declares it. `format` annotates, as
2020-12 has it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

import jsonschema_rs
from pydantic import JsonValue

from gateway.schema_cost import Cost, TooCostly, cost_of, size_of
from gateway.strictjson import canonical, parse_json
from workflows.contract.text import clean_text

DIALECT = "https://json-schema.org/draft/2020-12/schema"
MAX_REASONS = 10
MAX_REASON = 200
MAX_WORK = 50_000_000
"""Units (gateway.schema_cost) that one value may cost: 12 ns each (measured)."""
MAX_FAULTS = 10_000
"""Reasons that a value could have, up to which all are looked for: 30 to 90 us each (measured)."""
TOO_LARGE = "at /: is too large to be judged by this schema"
DOES_NOT_FIT = "at /: does not fit, and is too large to say where"

_PATTERNS = jsonschema_rs.FancyRegexOptions(backtrack_limit=10_000, size_limit=1 << 20, dfa_size_limit=1 << 20)
_REFERENCE = "A reference must lead to a part of the same schema (#...), which has no $id of its own."
_RULES: Mapping[str, str] = MappingProxyType(
    {
        "additionalProperties": "has a member that is not declared",
        "unevaluatedProperties": "has a member that is not declared",
        "anyOf": "matches none of the allowed shapes",
        "oneOf": "must match exactly one of the allowed shapes",
        "const": "is not the one allowed value",
        "enum": "is not one of the allowed values",
        "falseSchema": "is not allowed",
        "not": "has a shape that is not allowed",
        "pattern": "does not match the pattern",
        "uniqueItems": "has the same element twice",
        "minLength": "is too short",
        "maxLength": "is too long",
        "minItems": "has too few elements",
        "maxItems": "has too many elements",
        "minimum": "is too small",
        "exclusiveMinimum": "is too small",
        "maximum": "is too large",
        "exclusiveMaximum": "is too large",
        "multipleOf": "is not a multiple of the allowed step",
    }
)


class SchemaInvalid(ValueError):
    """Not a usable schema. `path` is the place in the schema; the message is a fixed sentence."""

    def __init__(self, rule: str, path: tuple[str | int, ...] = ()) -> None:
        super().__init__(rule)
        self.path = path


@dataclass(frozen=True, slots=True)
class CompiledSchema:
    """A schema ready to judge values; safe to share between threads."""

    validator: jsonschema_rs.Validator
    declared: frozenset[str]
    cost: Cost

    def reasons(self, value: JsonValue) -> list[str]:
        """Why `value` does not fit: at most MAX_REASONS short sentences, none where it fits. Of a value that could have
        very many reasons the first, or that it does not fit."""
        size = size_of(value)
        if size * self.cost.work > MAX_WORK:
            return [TOO_LARGE]
        if self.validator.is_valid(value):
            return []
        if size * self.cost.faults <= MAX_FAULTS:  # the library makes them all before it hands out the first
            return [self._reason(error) for error in list(self.validator.iter_errors(value))[:MAX_REASONS]]
        if self.cost.choices:  # nor is one reason then a small one: it holds those of every choice
            return [DOES_NOT_FIT]
        try:
            self.validator.validate(value)
        except jsonschema_rs.ValidationError as error:
            return [self._reason(error)]
        return [DOES_NOT_FIT]

    def _reason(self, error: jsonschema_rs.ValidationError) -> str:
        place = "".join(f"/{self._shown(part)}" for part in error.instance_path[:16])
        rule = _rule_of(error.kind)
        return clean_text(f"at {place or '/'}: {rule}", MAX_REASON)

    def _shown(self, part: str | int) -> str:
        return str(part) if isinstance(part, int) or part in self.declared else "*"


def _rule_of(kind: jsonschema_rs.ValidationErrorKind) -> str:
    if isinstance(kind, jsonschema_rs.ValidationErrorKind.Type):
        return f"must be {' or '.join(kind.types)}"
    if isinstance(kind, jsonschema_rs.ValidationErrorKind.Required):
        return f"the member {clean_text(kind.property, 64)} is missing"
    return _RULES.get(kind.name, f"does not meet {kind.name}")


def compile_schema(schema: JsonValue) -> CompiledSchema:
    """The compiled form, shared by all equal schemas. Raises SchemaInvalid."""
    try:
        text = canonical(schema)
    except (ValueError, RecursionError):
        raise SchemaInvalid("A schema must be JSON.") from None
    return _compiled(text)


def check_schema(schema: JsonValue) -> None:
    """Raises SchemaInvalid for what is no JSON Schema 2020-12, leans on another document, or is too much work."""
    compile_schema(schema)


def validate(schema: JsonValue, value: JsonValue) -> list[str]:
    """Why `value` does not fit `schema`, without values. Raises SchemaInvalid."""
    return compile_schema(schema).reasons(value)


@lru_cache(maxsize=512)
def _compiled(text: bytes) -> CompiledSchema:
    schema = parse_json(text)
    if not isinstance(schema, dict | bool):
        raise SchemaInvalid("A schema must be an object.")
    if isinstance(schema, dict) and schema.get("$schema", DIALECT) not in (DIALECT, DIALECT + "#"):
        raise SchemaInvalid("Only JSON Schema 2020-12 is read.", ("$schema",))
    try:
        validator = jsonschema_rs.Draft202012Validator(schema, offline=True, pattern_options=_PATTERNS)
    except jsonschema_rs.ValidationError as broken:
        if isinstance(broken.kind, jsonschema_rs.ValidationErrorKind.Referencing):
            raise SchemaInvalid(_REFERENCE) from None
        raise SchemaInvalid("This is not a valid JSON Schema 2020-12.", tuple(broken.instance_path)) from None
    except ValueError:
        raise SchemaInvalid("This is not a valid JSON Schema 2020-12.") from None
    try:
        cost = cost_of(schema)
    except TooCostly as costly:
        raise SchemaInvalid(str(costly)) from None
    except (LookupError, ValueError, TypeError):
        raise SchemaInvalid(_REFERENCE) from None
    return CompiledSchema(validator, frozenset(_declared(schema)), cost)


def _declared(schema: JsonValue) -> Iterator[str]:
    """Names under any `properties`: the schema's own words, safe to show."""
    pending: list[JsonValue] = [schema]
    while pending:
        value = pending.pop()
        if isinstance(value, list):
            pending.extend(value)
        elif isinstance(value, dict):
            properties = value.get("properties")
            if isinstance(properties, dict):
                yield from properties
            pending.extend(value.values())
