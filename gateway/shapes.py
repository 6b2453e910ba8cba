"""What a file of a bundle must look like: strict frozen models, and the first fault as file, line and rule.

Values are judged as JSON (no coercion), unknown fields are refused, and a fault names only fields that a model
declares: a key or value that somebody typed is never repeated.
"""

import json
from typing import Any, TypeVar, cast

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic.fields import FieldInfo

from gateway.strictyaml import Document, Path


class Shape(BaseModel):
    """The configuration of every model of a file."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, fields: Any) -> Any:
        """`skills:` with nothing behind it is what YAML calls null."""
        if not isinstance(fields, dict):
            return fields
        known = cls.model_fields
        members = cast("dict[str, Any]", fields).items()
        return {
            name: value for name, value in members if value is not None or name not in known or _nullable(known[name])
        }


def _nullable(field: FieldInfo) -> bool:
    return field.is_required() or field.default is None


_S = TypeVar("_S", bound=BaseModel)


def shape_of(model: type[_S], document: Document) -> _S:
    """The document as `model`. Raises Refused `input-invalid` with the file and, where there are lines, the line."""
    try:
        return model.model_validate_json(json.dumps(document.value))
    except ValidationError as broken:
        faults = broken.errors(include_url=False, include_context=False, include_input=False)
        first = min(faults, key=lambda fault: document.line_of(fault["loc"]) or 0)
        raise document.fault(first["loc"], _rule(first["loc"], first["msg"])) from None


def _rule(path: Path, message: str) -> str:
    sentence = message.removeprefix("Value error, ").rstrip(".")
    return f"{place(path)}: {sentence}." if path else f"{sentence}."


def place(path: Path) -> str:
    """`tools.0.http.path`; a part that no model declares reads `*`."""
    declared = {name for shape in Shape.__subclasses__() for name in shape.model_fields}
    return ".".join(str(part) if isinstance(part, int) or part in declared else "*" for part in path)
