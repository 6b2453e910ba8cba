"""What a file of a bundle must look like: strict frozen models, and the first fault as file, line and rule.

Values are judged as JSON (no coercion), unknown fields are refused, and a fault names only fields that a model
declares: a key or value that somebody typed is never repeated.
"""

import json
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from gateway.strictyaml import Document, Path


class Shape(BaseModel):
    """The configuration of every model of a file."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


_S = TypeVar("_S", bound=BaseModel)


def shape_of(model: type[_S], document: Document) -> _S:
    """The document as `model`. Raises Refused `input-invalid` with the file and, where there are lines, the line."""
    value = document.value
    if isinstance(value, dict):
        value = {name: member for name, member in value.items() if member is not None or not _has_default(model, name)}
    try:
        return model.model_validate_json(json.dumps(value))
    except ValidationError as broken:
        faults = broken.errors(include_url=False, include_context=False, include_input=False)
        first = min(faults, key=lambda fault: document.line_of(fault["loc"]) or 0)
        raise document.fault(first["loc"], _rule(first["loc"], first["msg"])) from None


def _has_default(model: type[BaseModel], name: str) -> bool:
    """`skills:` with nothing behind it is null to YAML and means that the field is absent."""
    field = model.model_fields.get(name)
    return field is not None and not field.is_required()


def _rule(path: Path, message: str) -> str:
    sentence = message.removeprefix("Value error, ").rstrip(".")
    return f"{place(path)}: {sentence}." if path else f"{sentence}."


def place(path: Path) -> str:
    """`tools.0.http.path`; a part that no model declares reads `*`."""
    declared = {name for shape in Shape.__subclasses__() for name in shape.model_fields}
    return ".".join(str(part) if isinstance(part, int) or part in declared else "*" for part in path)
