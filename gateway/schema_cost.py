"""What judging by a JSON Schema can cost at most, found out before anything is judged by it.

References, and alternatives that lead to the same place, multiply: ten lines can be more work than a process ever does,
and everybody's requests wait for it. A schema is counted along the worst value of any depth, so that ordinary
references and recursion stay free, and what multiplies is refused where it is published.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import unquote

import jsonschema_rs
from pydantic import JsonValue

MAX_COST = 50_000
"""Of a schema: units for one place of a value, all schemas together that may judge it or what is around it."""
DEEPEST = 64
"""Nesting that strict JSON takes (gateway.strictjson)."""
MAX_PLACES = 10_000
"""Subschemas of one schema."""
MAX_COUNTING = 500_000
"""Steps that counting itself may take."""
LINEAR = jsonschema_rs.RegexOptions(size_limit=1 << 20, dfa_size_limit=1 << 20)
LINEAR_COST, BACKTRACKING_COST = 4, 5_000
_LONGEST_CHAIN = 200
_CHARS = 16
"""Of a text that cost as much as one more value."""
_OTHER = ""
"""A member that no schema names."""


class TooCostly(ValueError):
    """The message is a fixed sentence."""

    def __init__(self) -> None:
        super().__init__("Its references or alternatives multiply to more work than one value is worth.")


@dataclass(frozen=True, slots=True)
class Cost:
    """Units for one place of a value at most. `faults`: how many reasons it can have there. `choices`: whether a
    reason can stand for many."""

    work: int
    faults: int
    choices: bool


@dataclass(slots=True)
class _Place:
    """One subschema: what it costs itself, what else judges the same value, and what judges the parts of it."""

    work: int = 1
    faults: int = 1
    here: list[int] = field(default_factory=list[int])
    again: int = 1
    named: dict[str, int] = field(default_factory=dict[str, int])
    members: list[int] = field(default_factory=list[int])
    others: list[int] = field(default_factory=list[int])
    prefix: list[int] = field(default_factory=list[int])
    elements: list[int] = field(default_factory=list[int])
    rest: list[int] = field(default_factory=list[int])


class _Meter:
    """Of one schema: what counting it has cost so far."""

    def __init__(self) -> None:
        self._left = MAX_COUNTING

    def count(self, steps: int) -> None:
        self._left -= steps
        if self._left < 0:
            raise TooCostly


def size_of(value: JsonValue) -> int:
    """Places of a value: every part of it, and long texts for more than one."""
    pending: list[JsonValue] = [value]
    size = 0
    while pending:
        one = pending.pop()
        size += 1
        if isinstance(one, str):
            size += len(one) // _CHARS
        elif isinstance(one, list):
            pending.extend(one)
        elif isinstance(one, dict):
            pending.extend(one.values())
            size += sum(len(name) // _CHARS for name in one)
    return size


def cost_of(schema: JsonValue) -> Cost:
    """Of a schema that was found valid. Raises TooCostly, and LookupError for a reference that is not followed."""
    reader = _Reader(schema)
    places = reader.places
    meter = _Meter()
    roots = [_together(places, index, meter) for index in range(len(places))]
    slots = [[*_slots(places, together, meter)] for together in roots]
    if sum(len(children) for of in slots for children in of) * DEEPEST > 4 * MAX_COUNTING:
        raise TooCostly
    work = _worst(roots, slots, [place.work for place in places])
    return Cost(work, _worst(roots, slots, [place.faults for place in places]), reader.choices)


class _Reader:
    """The subschemas that judging can reach from the root, which is place 0."""

    def __init__(self, schema: JsonValue) -> None:
        self.places: list[_Place] = []
        self.choices = False
        self._root = schema
        self._known: dict[int, int] = {}
        self._anchors = dict(_anchors(schema))
        self._pending: list[tuple[dict[str, Any], _Place]] = []
        self._place(schema)
        while self._pending:
            self._read(*self._pending.pop())

    def _place(self, schema: JsonValue) -> int:
        index = self._known.get(id(schema)) if isinstance(schema, dict) else None
        if index is None:
            index = len(self.places)
            if index >= MAX_PLACES:
                raise TooCostly
            self.places.append(_Place())
            if isinstance(schema, dict):
                self._known[id(schema)] = index
                self._pending.append((schema, self.places[index]))
        return index

    def _all(self, schemas: Any) -> list[int]:
        """The places of a schema, or of a list or an object of them; none where the keyword is absent."""
        if isinstance(schemas, list):
            return [self._place(one) for one in cast(list[JsonValue], schemas)]
        return [self._place(one) for one in cast(dict[str, JsonValue], schemas).values()]

    def _read(self, schema: dict[str, Any], place: _Place) -> None:
        self.choices = self.choices or "anyOf" in schema or "oneOf" in schema
        required, depending = schema.get("required", ()), schema.get("dependentRequired", {})
        place.faults += len(required) + sum(len(names) for names in depending.values())
        place.faults += sum(size_of(schema[word]) for word in ("enum", "const") if word in schema)
        place.work = place.faults + len(schema.get("properties", ()))
        place.work += _pattern_cost(schema["pattern"]) if "pattern" in schema else 0
        place.here = [
            *(self._target(schema[word]) for word in ("$ref", "$dynamicRef") if word in schema),
            *(self._place(schema[word]) for word in ("not", "if", "then", "else") if word in schema),
            *(index for word in ("allOf", "anyOf", "oneOf") for index in self._all(schema.get(word, []))),
            *self._all(schema.get("dependentSchemas", {})),
        ]
        if "unevaluatedProperties" in schema or "unevaluatedItems" in schema:
            place.again = 3  # they ask the others once more, and those theirs
        place.named = {name: self._place(one) for name, one in schema.get("properties", {}).items()}
        patterns = schema.get("patternProperties", {})
        place.members = [
            *self._all(patterns),
            *(self._place(schema[word]) for word in ("propertyNames", "unevaluatedProperties") if word in schema),
        ]
        if patterns:
            matching = sum(_pattern_cost(pattern) for pattern in patterns)
            place.members.append(self._place(True))
            self.places[place.members[-1]].work = matching
        place.others = self._all([schema[word] for word in ("additionalProperties",) if word in schema])
        place.prefix = self._all(schema.get("prefixItems", []))
        place.elements = self._all([schema[word] for word in ("contains", "unevaluatedItems") if word in schema])
        place.rest = self._all([schema[word] for word in ("items",) if word in schema])

    def _target(self, reference: str) -> int:
        part = unquote(reference.removeprefix("#"))
        if not reference.startswith("#"):
            raise LookupError
        if part and not part.startswith("/"):
            return self._place(self._anchors[part])
        found: Any = self._root
        for step in part.split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            found = cast(list[Any], found)[int(name)] if isinstance(found, list) else found[name]
        return self._place(found)


def _anchors(schema: JsonValue) -> Iterator[tuple[str, JsonValue]]:
    """By name. A part with an `$id` would be a document of its own, and one name twice would mean two. Raises
    LookupError."""
    pending: list[JsonValue] = [schema]
    seen: set[str] = set()
    while pending:
        value = pending.pop()
        if isinstance(value, list):
            pending.extend(value)
        elif isinstance(value, dict):
            if value is not schema and isinstance(value.get("$id"), str):
                raise LookupError
            for word in ("$anchor", "$dynamicAnchor"):
                if isinstance(name := value.get(word), str):
                    if name in seen:
                        raise LookupError
                    seen.add(name)
                    yield name, value
            pending.extend(value.values())


def _pattern_cost(pattern: str) -> int:
    """A pattern with look-around or back-references may try many ways; any other is linear in the text."""
    try:
        jsonschema_rs.Draft202012Validator({"pattern": pattern}, pattern_options=LINEAR)
    except (jsonschema_rs.ValidationError, ValueError):
        return BACKTRACKING_COST
    return LINEAR_COST


def _together(places: list[_Place], root: int, meter: _Meter) -> Counter[int]:
    """How often each subschema judges the value that `root` judges. Raises TooCostly, also for one that leads back to
    itself."""
    times: Counter[int] = Counter()
    pending = [(root, 1, 0)]
    while pending:
        index, often, depth = pending.pop()
        times[index] += often
        meter.count(1)
        if depth > _LONGEST_CHAIN:
            raise TooCostly
        place = places[index]
        pending.extend((other, often * place.again, depth + 1) for other in place.here)
    return times


def _slots(places: list[_Place], together: Counter[int], meter: _Meter) -> Iterator[Counter[int]]:
    """For each part that a value can have, what judges it, and how often."""
    names = {_OTHER, *(name for index in together for name in places[index].named)}
    longest = max(len(places[index].prefix) for index in together)
    meter.count((len(names) + longest) * len(together))

    def member(name: str) -> Callable[[_Place], list[int]]:
        return lambda place: [*place.members, *([place.named[name]] if name in place.named else place.others)]

    def element(at: int) -> Callable[[_Place], list[int]]:
        return lambda place: [*place.elements, *(place.prefix[at : at + 1] or place.rest)]

    for children_of in (*map(member, sorted(names)), *map(element, range(longest + 1))):
        children: Counter[int] = Counter()
        for index, often in together.items():
            for child in children_of(places[index]):
                children[child] += often
        if children:
            yield children


def _worst(roots: list[Counter[int]], slots: list[list[Counter[int]]], prices: list[int]) -> int:
    """The price of the worst value: level by level, its worst part. Raises TooCostly."""
    own = [sum(prices[index] * often for index, often in together.items()) for together in roots]
    worst = own
    for _ in range(DEEPEST):
        deeper = [
            own[root] + max((sum(worst[child] * often for child, often in of.items()) for of in slots[root]), default=0)
            for root in range(len(own))
        ]
        if max(deeper) > MAX_COST:
            raise TooCostly
        if deeper == worst:
            break
        worst = deeper
    return worst[0]
