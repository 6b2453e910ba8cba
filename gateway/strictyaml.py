"""YAML that means one thing: the JSON subset of what PyYAML's safe loader reads, with the line of every value.

Refused with file and line: duplicate keys, anchors, aliases, tags, merge keys, several documents, and plain texts that
YAML 1.1 turns into something else than they look like (`yes`, `010`, `1:30`, `.inf`). Keys are always texts, dates stay
texts, and numbers follow gateway/strictjson.py.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import yaml
from pydantic import JsonValue
from yaml.reader import ReaderError
from yaml.resolver import Resolver

from gateway.strictjson import NumberRefused, strict_integer, strict_number
from workflows.contract.errors import ProblemCode, Refused

MAX_DEPTH = 48
"""Nesting; below that of JSON bodies, so that every part of a bundle fits into one."""

Path = tuple[str | int, ...]

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml where PyYAML was built with it
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]*)")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_CONSTANTS: Mapping[str, bool | None] = MappingProxyType(
    {"true": True, "True": True, "false": False, "False": False, "null": None, "Null": None, "~": None, "": None}
)
_AMBIGUOUS = frozenset(f"tag:yaml.org,2002:{kind}" for kind in ("bool", "int", "float", "null"))


def fault_in(file: str, line: int | None, rule: str, code: ProblemCode = ProblemCode.INPUT_INVALID) -> Refused:
    """The refusal of a bundle's or deployment's file. `rule` is a sentence about the contract and holds no input."""
    place = file if line is None else f"{file}:{line}"
    return Refused(code, f"{place}: {rule}", file=file, line=line)


@dataclass(frozen=True, slots=True)
class Document:
    """A file's value and where each part of it stands. Lines count from 1; JSON that came over HTTP has none."""

    file: str
    value: JsonValue
    lines: Mapping[Path, int] = field(default_factory=dict[Path, int])

    def line_of(self, path: Path) -> int | None:
        """The line of `path`, or of the nearest part around it."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path)

    def fault(self, path: Path, rule: str, code: ProblemCode = ProblemCode.INPUT_INVALID) -> Refused:
        return fault_in(self.file, self.line_of(path), rule, code)


def load_yaml(text: str, file: str) -> Document:
    """The one document of `text`. Raises Refused `input-invalid` with `file` and `line`."""
    reader = _Reader(file)
    try:
        for event in _events(text):
            reader.take(event)
    except yaml.MarkedYAMLError as broken:
        mark = broken.problem_mark or broken.context_mark
        raise fault_in(file, mark.line + 1 if mark else None, "This is not valid YAML.") from None
    except ReaderError as broken:  # it has a byte offset and no line
        line = text.encode()[: broken.position].count(b"\n") + 1
        raise fault_in(file, line, "A character is not allowed in YAML.") from None
    except UnicodeEncodeError as broken:
        line = text.count("\n", 0, broken.start) + 1
        raise fault_in(file, line, "A text holds half of a surrogate pair.") from None
    if reader.root is None:
        raise fault_in(file, 1, "The file is empty.")
    return Document(file, reader.root[0], MappingProxyType(reader.lines))


def _events(text: str) -> Iterator[yaml.Event]:
    return yaml.parse(text, Loader=_LOADER)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


def _line(event: yaml.Event) -> int:
    return event.start_mark.line + 1 if event.start_mark else 1


@dataclass(slots=True)
class _Open:
    """A mapping or sequence whose end has not come yet."""

    value: dict[str, Any] | list[Any]
    path: Path
    key: str | None = None


@dataclass(slots=True)
class _Reader:
    """Builds values from parser events without recursion."""

    file: str
    root: tuple[JsonValue] | None = None
    lines: dict[Path, int] = field(default_factory=dict[Path, int])
    _open: list[_Open] = field(default_factory=list[_Open])
    _resolver: Resolver = field(default_factory=Resolver)

    def take(self, event: yaml.Event) -> None:
        line = _line(event)
        match event:
            case yaml.AliasEvent():
                raise fault_in(self.file, line, "Aliases are not allowed.")
            case yaml.DocumentStartEvent():
                if self.root is not None:
                    raise fault_in(self.file, line, "The file holds more than one document.")
            case yaml.ScalarEvent():
                self._plain_node(event, line)
                self._scalar(event, line)
            case yaml.MappingStartEvent() | yaml.SequenceStartEvent():
                self._plain_node(event, line)
                self._begin({} if isinstance(event, yaml.MappingStartEvent) else [], line)
            case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                self._open.pop()
            case _:
                pass

    def _plain_node(self, event: yaml.ScalarEvent | yaml.CollectionStartEvent, line: int) -> None:
        if event.anchor is not None:
            raise fault_in(self.file, line, "Anchors are not allowed.")
        if event.tag is not None:
            raise fault_in(self.file, line, "Tags are not allowed.")

    def _scalar(self, event: yaml.ScalarEvent, line: int) -> None:
        inner = self._open[-1] if self._open else None
        if inner is not None and isinstance(inner.value, dict) and inner.key is None:
            if event.value == "<<" and event.implicit[0]:
                raise fault_in(self.file, line, "Merge keys are not allowed.")
            if event.value in inner.value:
                raise fault_in(self.file, line, "This key stands twice in one mapping.")
            inner.key = event.value
            self.lines[(*inner.path, event.value)] = line
            return
        self._put(self._plain(event.value, line) if event.implicit[0] else event.value, line)

    def _plain(self, text: str, line: int) -> JsonValue:
        if text in _CONSTANTS:
            return _CONSTANTS[text]
        try:
            if _INTEGER.fullmatch(text):
                return strict_integer(text)
            if _NUMBER.fullmatch(text):
                return strict_number(text)
        except NumberRefused as refused:
            raise fault_in(self.file, line, str(refused)) from None
        tag = self._resolver.resolve(yaml.ScalarNode, text, (True, False))  # pyright: ignore
        if tag in _AMBIGUOUS:
            raise fault_in(self.file, line, "Write true, false, null or a JSON number, or put this text in quotes.")
        return text

    def _begin(self, value: dict[str, Any] | list[Any], line: int) -> None:
        if len(self._open) >= MAX_DEPTH:
            raise fault_in(self.file, line, f"The file is nested deeper than {MAX_DEPTH}.")
        self._open.append(_Open(value, self._put(value, line)))

    def _put(self, value: JsonValue, line: int) -> Path:
        """Adds a value to the innermost open part and returns its path."""
        if not self._open:
            self.root = (value,)
            self.lines[()] = line
            return ()
        inner = self._open[-1]
        if isinstance(inner.value, list):
            path = (*inner.path, len(inner.value))
            inner.value.append(value)
            self.lines[path] = line
            return path
        if inner.key is None:
            raise fault_in(self.file, line, "A key must be a text.")
        path = (*inner.path, inner.key)
        inner.value[inner.key] = value
        inner.key = None
        return path
