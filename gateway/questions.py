"""Answers of people: whether one fits the schema of its question, found out in bounded time.

A question's schema is a model's text, judged where everybody's requests are served. So it is read more narrowly than
one of a plugin: without references, which can make a short schema endless work, small, and with patterns whose time is
linear in the answer.
"""

from collections.abc import Mapping
from functools import lru_cache

import jsonschema_rs
from pydantic import JsonValue

from gateway.schema_cost import LINEAR
from gateway.schemas import CompiledSchema, SchemaInvalid, compile_schema
from gateway.strictjson import canonical, parse_json

ANSWER_BYTES = 32 * 1024
MAX_NODES = 2_000
"""Values in a question's schema, counted through all its levels."""
_REFERENCES = frozenset({"$ref", "$dynamicRef", "$recursiveRef"})


def compile_question(schema: JsonValue) -> CompiledSchema:
    """The compiled schema of a question. Raises SchemaInvalid."""
    _check_small(schema)
    general = compile_schema(schema)
    return CompiledSchema(_bounded(canonical(schema)), general.declared, general.cost)


def misfits(question: Mapping[str, JsonValue], answer: JsonValue) -> list[str]:
    """Why an answer does not fit the question that was asked, place and rule of each; none where it fits.

    `question` are the arguments of `ask_human`; one without a schema takes any answer. Raises SchemaInvalid.
    """
    return compile_question(question["schema"]).reasons(answer) if "schema" in question else []


def _check_small(schema: JsonValue) -> None:
    pending, nodes = [schema], 0
    while pending:
        value = pending.pop()
        nodes += 1
        if nodes > MAX_NODES:
            raise SchemaInvalid(f"A question's schema has at most {MAX_NODES} values.")
        if isinstance(value, dict):
            if any(isinstance(value.get(word), str) for word in _REFERENCES):
                raise SchemaInvalid("A question's schema may not use references.")
            pending.extend(value.values())
        elif isinstance(value, list):
            pending.extend(value)


@lru_cache(maxsize=256)
def _bounded(text: bytes) -> jsonschema_rs.Validator:
    schema = parse_json(text)
    assert isinstance(schema, dict | bool)
    try:
        return jsonschema_rs.Draft202012Validator(schema, offline=True, pattern_options=LINEAR)
    except (jsonschema_rs.ValidationError, ValueError):
        raise SchemaInvalid("A question's patterns may not look around or back.") from None
