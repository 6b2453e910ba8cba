"""JSON that means one thing: what this accepts survives canonical form, a double and every later reader unchanged.

The rules are I-JSON (RFC 7493) and design.md section 6: finite numbers that a double holds exactly as written, integers
within 2^53-1 in any spelling, unique keys, no lone surrogates, bounded nesting. A number with an integral value becomes
an `int` (`1.0` is `1`, `-0.0` is `0`), so equal content has one form. Refusals are fixed sentences without input.
"""

import json
import re
from decimal import Decimal
from typing import Any, NoReturn

import rfc8785
from pydantic import JsonValue

from workflows.contract.errors import ProblemCode, Refused
from workflows.contract.ids import Digest, sha256_of

MAX_SAFE_INTEGER = 2**53 - 1
_LONGEST_SAFE = len(str(-MAX_SAFE_INTEGER))
# Closed or running to the end of the text: always a match, hence linear on hostile bodies.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
_BRACKET = re.compile(rb"[\[\]{}]")
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class NumberRefused(ValueError):
    """A number that would not survive; the message is a fixed sentence."""


def strict_integer(text: str) -> int:
    """Raises NumberRefused beyond 2^53-1. `text` follows JSON's grammar."""
    if len(text) > _LONGEST_SAFE or abs(value := int(text)) > MAX_SAFE_INTEGER:
        raise NumberRefused("An integer is beyond 2^53-1; send it as text.")
    return value


def strict_number(text: str) -> int | float:
    """A number with fraction or exponent, an `int` where its value is integral. Raises NumberRefused where a double
    differs from what is written."""
    value = float(text)
    if abs(value) > MAX_SAFE_INTEGER:  # an infinity included; every double out here is an integer
        raise NumberRefused("A number is beyond 2^53-1; send it as text.")
    if value == 0:
        if re.search("[1-9]", re.split("[eE]", text, maxsplit=1)[0]):
            raise NumberRefused("A number is too small for a double; send it as text.")
        return 0
    if Decimal(text) != Decimal(repr(value)):
        raise NumberRefused("A number has more digits than a double holds; send it as text.")
    return int(value) if value.is_integer() else value


def _refuse(detail: str) -> NoReturn:
    raise Refused(ProblemCode.INPUT_INVALID, detail) from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        _refuse("An object has the same key twice.")
    return members


def _no_constant(_name: str) -> NoReturn:
    _refuse("NaN and Infinity are not JSON.")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique, parse_int=strict_integer, parse_float=strict_number, parse_constant=_no_constant
)


def parse_json(body: bytes, *, max_depth: int = 64) -> JsonValue:
    """The value of `body`, or Refused `input-invalid`. `max_depth` counts arrays and objects around a value."""
    if body.startswith(b"\xef\xbb\xbf"):
        _refuse("The body starts with a byte order mark.")
    if body.count(b"[") + body.count(b"{") > max_depth and _too_deep(body, max_depth):
        _refuse(f"The body is nested deeper than {max_depth}.")
    try:
        value = _DECODER.decode(body.decode("utf-8"))
    except UnicodeDecodeError:
        _refuse("The body is not UTF-8.")
    except NumberRefused as refused:
        _refuse(str(refused))
    except ValueError:
        _refuse("The body is not valid JSON.")
    if _SURROGATE.search(body):
        try:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError:
            _refuse("A text holds half of a surrogate pair.")
    return value


def _too_deep(body: bytes, max_depth: int) -> bool:
    """Whether a parser could meet a nesting over `max_depth` in `body` before its first fault."""
    depth = 0
    for bracket in _BRACKET.findall(_STRING.sub(b"", body)):
        depth += 1 if bracket in b"[{" else -1
        if depth > max_depth:
            return True
    return False


def canonical(value: object) -> bytes:
    """RFC 8785. Raises ValueError for what is not JSON within the rules above (a programming error by then)."""
    return rfc8785.dumps(value)  # pyright: ignore[reportArgumentType]  # its own type has no Mapping of object


def digest_of(value: object) -> Digest:
    return sha256_of(canonical(value))
