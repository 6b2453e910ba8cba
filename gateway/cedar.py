"""A plugin's `policy.cedar`: compiled once, then one verdict per call. Pure: no I/O, no clock.

`call` denied refuses, `call_unattended` denied asks, any evaluation error refuses: Cedar skips a `forbid` that errors,
so an error in a policy that did not decide may hide a prohibition. What the arguments look like to a policy: members
that are null are dropped, and null elements of arrays too; integral floats are integers, other floats are their text.
Cedar's parser overflows its stack on deep nesting, which ends the process, so texts are measured before it sees them.
"""

import functools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import cedarpy
import rfc8785
from pydantic import JsonValue

from workflows.contract.ids import PrincipalId, ToolName, Workspace
from workflows.contract.job import EffectClass

MAX_POLICY_TOKENS = 4_000
"""Of one policy; measured: 8,000 tokens and 250 brackets are still safe on a thread's stack, 1,000 brackets are not."""
MAX_BRACKETS = 64
MAX_DEPTH = 64
_RESERVED = frozenset({"__entity", "__extn", "__expr"})
"""Keys that Cedar's JSON reader turns into entities and extension values."""
_ACTIONS = ("call", "call_unattended")
_TOKEN = re.compile(r'//[^\n]*|"(?:\\.|[^"\\])*"|\?[A-Za-z_]\w*|[A-Za-z_]\w*|\d+|::|&&|\|\||[=!<>]=|\S', re.DOTALL)
_FAULTS = (
    "unexpected token",
    "unexpected end of input",
    "invalid token",
    "invalid variable",
    "integer parse error",
    "duplicate annotation",
    "expected an entity uid",
    "too many occurrences",
)
"""Beginnings of Cedar's messages that hold no input."""


class PolicyInvalid(Exception):
    """`line` counts from 1 in policy.cedar; `reason` is a fixed sentence."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(f"policy.cedar, line {line}: {reason}")
        self.line = line
        self.reason = reason


class Verdict(NamedTuple):
    verdict: Literal["run", "ask", "refuse"]
    reason: str


RUN = Verdict("run", "The policy lets this call run.")
ASK = Verdict("ask", "The policy asks a person first.")
DENIED = Verdict("refuse", "The policy does not allow this call.")
UNKNOWN_TOOL = Verdict("refuse", "The policy was not made for this tool.")
RESERVED = Verdict("refuse", "The arguments hold a key that is reserved.")
UNDECIDED = Verdict("refuse", "The policy can not be evaluated for these arguments.")


@dataclass(frozen=True, slots=True)
class Policy:
    """Immutable and shared between threads. `parsed` None: no policy.cedar, so reads run and writes ask."""

    tools: Mapping[ToolName, EffectClass]
    parsed: cedarpy.PolicySet | None
    entities: str
    """The tools, as the inside of a JSON array."""

    def evaluate(
        self,
        principal: PrincipalId,
        workspace: Workspace,
        tool: ToolName,
        effect: EffectClass,
        args: Mapping[str, JsonValue],
    ) -> Verdict:
        if self.tools.get(tool) != effect:
            return UNKNOWN_TOOL
        try:
            seen = _seen(dict(args), MAX_DEPTH)
        except _ReservedKey:
            return RESERVED
        except ValueError:
            return UNDECIDED
        if self.parsed is None:
            return RUN if effect == "read" else ASK
        person = {"type": "Principal", "id": principal}
        request = {"principal": person, "resource": {"type": "Tool", "id": tool}, "context": json.dumps({"args": seen})}
        entity = json.dumps({"uid": person, "attrs": {"workspace": workspace}, "parents": []})
        results = cedarpy.is_authorized_batch(  # pyright: ignore[reportUnknownMemberType]  # its dicts are bare
            [request | {"action": {"type": "Action", "id": action}} for action in _ACTIONS],
            self.parsed,
            f"[{entity}{self.entities}]",
        )
        if any(result.diagnostics.errors or result.decision is cedarpy.Decision.NoDecision for result in results):
            return UNDECIDED
        call, unattended = (result.allowed for result in results)
        if not call:
            return DENIED
        return RUN if unattended else ASK


def compile_policy(text: str | None, tools: Mapping[ToolName, EffectClass]) -> Policy:
    """Raises PolicyInvalid for a text that does not parse or names an unknown action, entity type or tool."""
    return _compiled(text, tuple(sorted(tools.items())))


@functools.lru_cache(maxsize=256)
def _compiled(text: str | None, tools: tuple[tuple[ToolName, EffectClass], ...]) -> Policy:
    parsed = None if text is None else _parsed(text, frozenset(name for name, _ in tools))
    entities = [
        json.dumps({"uid": {"type": "Tool", "id": name}, "attrs": {"effect": effect}, "parents": []})
        for name, effect in tools
    ]
    return Policy(dict(tools), parsed, "".join(f",{entity}" for entity in entities))


class _Token(NamedTuple):
    text: str
    end: int
    line: int


def _parsed(text: str, tools: frozenset[ToolName]) -> cedarpy.PolicySet:
    policies = _split(_tokens(text))
    for policy in policies:
        _check_size(policy)
    try:
        parsed = cedarpy.PolicySet.from_str(text)
    except ValueError:
        raise _fault(text, policies) from None
    for policy in policies:
        _check_names(policy, tools)
    return parsed


def _tokens(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    line, counted = 1, 0
    for found in _TOKEN.finditer(text):
        line += text.count("\n", counted, found.start())
        counted = found.start()
        if not found[0].startswith("//"):
            tokens.append(_Token(found[0], found.end(), line))
    return tokens


def _split(tokens: Sequence[_Token]) -> list[list[_Token]]:
    policies: list[list[_Token]] = [[]]
    for token in tokens:
        policies[-1].append(token)
        if token.text == ";":
            policies.append([])
    return [policy for policy in policies if policy]


def _check_size(policy: Sequence[_Token]) -> None:
    if len(policy) > MAX_POLICY_TOKENS:
        raise PolicyInvalid(policy[0].line, f"The policy has more than {MAX_POLICY_TOKENS} words and signs.")
    depth = 0
    for token in policy:
        depth += (token.text in "([{") - (token.text in ")]}")
        if depth > MAX_BRACKETS:
            raise PolicyInvalid(token.line, f"The policy is nested deeper than {MAX_BRACKETS} brackets.")


def _check_names(policy: Sequence[_Token], tools: frozenset[ToolName]) -> None:
    """In a text that parses, a path before a quoted id is always an entity, and a path after `is` always a type."""
    known = {"Tool": {f'"{name}"' for name in tools}, "Action": {f'"{action}"' for action in _ACTIONS}}
    types = {*known, "Principal"}
    for at, token in enumerate(policy):
        before, after = policy[max(at - 1, 0)].text, [later.text for later in policy[at + 1 : at + 3]]
        if token.text in ("?principal", "?resource"):
            raise PolicyInvalid(token.line, "A template with a slot never applies to a call.")
        if before == "is" and (token.text not in types or after[:1] == ["::"]):
            raise PolicyInvalid(token.line, "It names an unknown entity type.")
        if after[:1] != ["::"] or not after[1].startswith('"'):
            continue
        if token.text not in types or before == "::":
            raise PolicyInvalid(token.line, "It names an unknown entity type.")
        if after[1] not in known.get(token.text, {after[1]}):
            raise PolicyInvalid(token.line, f"It names an unknown {token.text.lower()}.")


def _fault(text: str, policies: Sequence[Sequence[_Token]]) -> PolicyInvalid:
    """Cedar does not say where: the first policy that fails alone, and in it the first token after which it can not
    be saved any more; a fault of meaning shows only at the policy's end and is placed at the word it quotes."""
    start = 0
    for policy in policies:
        message = _message(text[start : policy[-1].end])
        if message is not None:
            kind = next(
                (kind for kind in _FAULTS if message.startswith(kind)), "a name or value that Cedar does not take"
            )
            return PolicyInvalid(_fault_line(text, start, policy, message), f"It does not parse: {kind}.")
        start = policy[-1].end
    return PolicyInvalid(1, "It does not parse.")


def _fault_line(text: str, start: int, policy: Sequence[_Token], message: str) -> int:
    low, high = 0, len(policy) - 1
    while low < high:
        middle = (low + high) // 2
        prefix = _message(text[start : policy[middle].end])
        if prefix is None or prefix.startswith("unexpected end"):
            low = middle + 1
        else:
            high = middle
    if low < len(policy) - 1 or message.startswith("unexpected"):
        return policy[low].line
    quoted = {*re.findall(r"`([^`]+)`", message), message.rpartition(": ")[2]}
    return next((token.line for token in policy if token.text.strip('"') in quoted), policy[0].line)


def _message(text: str) -> str | None:
    try:
        cedarpy.PolicySet.from_str(text)
    except UnicodeEncodeError:
        return "invalid token"
    except ValueError as error:
        return str(error)
    return None


class _ReservedKey(Exception):
    pass


def _seen(value: JsonValue, depth: int) -> Any:
    """The value as a policy sees it. Raises ValueError for a depth or number that Cedar does not take; an integer
    over 64 bits or half a surrogate pair is left to Cedar, which then does not decide."""
    if isinstance(value, float):
        return int(value) if value.is_integer() else rfc8785.dumps(value).decode()
    if not isinstance(value, list | dict):
        return value
    if depth == 0:
        raise ValueError("nested too deeply")
    if isinstance(value, list):
        return [_seen(item, depth - 1) for item in value if item is not None]
    if not _RESERVED.isdisjoint(value):
        raise _ReservedKey
    return {key: _seen(item, depth - 1) for key, item in value.items() if item is not None}
