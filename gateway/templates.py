"""`title` and `event` texts: `{name}` of a declared top-level argument is replaced, and nothing else is evaluated.

A rendered text is what a person reads before deciding, so every value is one clean line of bounded length. An argument
that is absent reads as a dash.
"""

import json
import re
from collections.abc import Iterable, Mapping

from pydantic import JsonValue

from gateway.manifest import Tool
from workflows.contract.text import clean_text

MAX_TEMPLATE = 300
MAX_VALUE = 120
MAX_TEXT = 500
ABSENT = "—"

_FIELD = re.compile(r"\{([^{}]*)\}")


class TemplateInvalid(ValueError):
    """The message is a fixed sentence."""


def names_in(template: str) -> frozenset[str]:
    return frozenset(_FIELD.findall(template))


def check_template(template: str, arguments: Iterable[str]) -> None:
    """Raises TemplateInvalid unless every `{...}` is the name of one of `arguments`."""
    if len(template) > MAX_TEMPLATE:
        raise TemplateInvalid(f"A template has at most {MAX_TEMPLATE} characters.")
    if not names_in(template) <= frozenset(arguments):
        raise TemplateInvalid("Braces must hold the name of a top-level argument of the input_schema.")


def render(template: str, args: Mapping[str, JsonValue]) -> str:
    """One line of at most MAX_TEXT characters; each value has at most MAX_VALUE."""
    return clean_text(_FIELD.sub(lambda match: _shown(args, match[1]), template), MAX_TEXT)


def title_of(tool: Tool, args: Mapping[str, JsonValue]) -> str:
    """The title of a request to approve `args`; a description is no template and is shown as it is."""
    template = tool.approval.title
    return clean_text(tool.description, MAX_TEXT) if template is None else render(template, args)


def _shown(args: Mapping[str, JsonValue], name: str) -> str:
    if name not in args:
        return ABSENT
    value = args[name]
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return clean_text(text, MAX_VALUE)
