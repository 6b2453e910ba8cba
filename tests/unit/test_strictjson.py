"""What parse_json accepts means one thing; what it refuses is refused without being repeated."""

import json
import math
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from gateway.strictjson import MAX_SAFE_INTEGER, canonical, digest_of, parse_json
from workflows.contract.errors import ProblemCode, Refused

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
NUMBERS = st.integers(-MAX_SAFE_INTEGER, MAX_SAFE_INTEGER) | st.floats(
    -MAX_SAFE_INTEGER, MAX_SAFE_INTEGER, allow_nan=False
)
VALUES: st.SearchStrategy[JsonValue] = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


def refusal(body: bytes) -> str:
    with pytest.raises(Refused) as caught:
        parse_json(body)
    assert caught.value.code is ProblemCode.INPUT_INVALID
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__
    return caught.value.detail


@given(VALUES, st.booleans(), st.sampled_from([None, 1]))
def test_every_json_value_survives(value: JsonValue, ascii_only: bool, indent: int | None) -> None:
    body = json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode()
    assert parse_json(body) == value
    assert parse_json(canonical(value)) == value
    assert canonical(parse_json(body)) == canonical(value)


@given(st.integers())
def test_an_integer_is_exact_or_refused_in_every_spelling(number: int) -> None:
    spellings = [f"{number}", f"{number}.0", f"{number}e0", f"{number * 10}E-1"]
    for spelling in spellings:
        if abs(number) <= MAX_SAFE_INTEGER:
            value = parse_json(spelling.encode())
            assert value == number
            assert isinstance(value, int)
        else:
            assert str(number) not in refusal(spelling.encode())


@given(st.decimals(allow_nan=False, allow_infinity=False, min_value=-1000, max_value=1000, places=19))
def test_a_decimal_is_numerically_exact_or_refused(number: Decimal) -> None:
    body = str(number).encode()
    if Decimal(repr(float(number))) == number:
        value = parse_json(body)
        assert isinstance(value, int | float)
        assert Decimal(repr(value)) == number
    else:
        assert refusal(body).startswith("A number")


@given(st.binary(max_size=60))
def test_any_bytes_are_a_value_or_a_refusal(body: bytes) -> None:
    try:
        value = parse_json(body)
    except Refused:
        return
    assert json.loads(body) == value


@pytest.mark.parametrize("text", ["0.1", "0.10", "1.5e3", "12.50", "5e-324", "1E2", "-0.25"])
def test_numbers_that_a_double_holds_as_written_are_taken(text: str) -> None:
    assert parse_json(text.encode()) == float(text)


@pytest.mark.parametrize("text", ["-0.0", "-0", "0e99", "0.000", "0e999999999999999999999"])
def test_every_zero_is_zero(text: str) -> None:
    value = parse_json(text.encode())
    assert value == 0
    assert math.copysign(1, float(str(value))) == 1


@pytest.mark.parametrize(
    "text",
    [
        "9007199254740992",
        "-9007199254740992",
        "9007199254740993",
        "9223372036854775808",
        "1e300",
        "1e999",
        "-1e999",
        "9007199254740992.0",
        "9007199254740991.5",
        "900719925474099200e-2",
        "1" * 400,
        "1" * 5000,
    ],
)
def test_numbers_beyond_the_safe_range_are_refused(text: str) -> None:
    assert "2^53-1" in refusal(b'{"a":[%s]}' % text.encode())


@pytest.mark.parametrize("text", ["0.1234567890123456789", "1.0000000000000000001", "123456789012.123456789"])
def test_numbers_with_more_digits_than_a_double_are_refused(text: str) -> None:
    assert "digits" in refusal(text.encode())


@pytest.mark.parametrize("text", ["1e-400", "0." + "0" * 400 + "1"])
def test_numbers_that_would_vanish_are_refused(text: str) -> None:
    assert "small" in refusal(text.encode())


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", '{"a": NaN}'])
def test_constants_that_are_not_json_are_refused(text: str) -> None:
    assert refusal(text.encode()) == "NaN and Infinity are not JSON."


@pytest.mark.parametrize(
    "body", [b'{"a":1,"a":1}', b'{"a":1,"\\u0061":2}', b'[{"b":{"x":1,"y":2,"x":1}}]', b'{"":1,"":2}']
)
def test_duplicate_keys_are_refused_at_any_depth(body: bytes) -> None:
    assert refusal(body) == "An object has the same key twice."


@pytest.mark.parametrize(
    "body",
    [b'"\\ud800"', b'"\\uDFFF"', b'{"\\ud800":1}', b'["\\udc00\\ud800"]', b'{"a":{"b":["x\\ud83d"]}}'],
)
def test_lone_surrogates_are_refused_in_texts_and_keys(body: bytes) -> None:
    assert refusal(body) == "A text holds half of a surrogate pair."


def test_surrogate_pairs_are_one_character() -> None:
    assert parse_json(b'{"\\ud83d\\ude00":"\\ud83d\\ude00"}') == {"\U0001f600": "\U0001f600"}


@pytest.mark.parametrize("body", [b"\xff", b'"\xed\xa0\x80"', b'"\xc0\xaf"', "é".encode("latin-1")])
def test_what_is_not_utf8_is_refused(body: bytes) -> None:
    assert refusal(body) == "The body is not UTF-8."


def test_a_byte_order_mark_is_refused() -> None:
    assert refusal(b"\xef\xbb\xbf{}") == "The body starts with a byte order mark."


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"{",
        b"[1,]",
        b"{'a':1}",
        b'{"a":1}x',
        b"01",
        b"+1",
        b".5",
        b"1.",
        b'"\n"',
        b"nul",
        "{}".encode("utf-16"),
    ],
)
def test_what_is_not_json_is_refused(body: bytes) -> None:
    assert refusal(body) in ("The body is not valid JSON.", "The body is not UTF-8.")


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_nesting_is_bounded_at_64(opening: str, closing: str) -> None:
    deepest = opening * 64 + "1" + closing * 64
    parse_json(deepest.encode())
    assert "nested" in refusal(f"[{deepest}]".encode())
    assert "nested" in refusal((opening * 100_000).encode())


def test_brackets_in_texts_are_not_nesting() -> None:
    text = '[{"' * 1000 + '\\"['
    assert parse_json(json.dumps([text]).encode()) == [text]
    assert parse_json(b"[" + b"[]," * 500 + b"1]") == [[]] * 500 + [1]


@given(st.text(alphabet='"\\[]{},:a1 ', max_size=300))
def test_no_arrangement_of_brackets_and_quotes_escapes_the_depth_check(text: str) -> None:
    try:
        parse_json(text.encode(), max_depth=3)
    except Refused as refused:
        deep = "nested" in refused.detail
    else:
        deep = False
    try:
        expected = _depth_of(json.loads(text)) > 3
    except ValueError:
        return
    assert deep == expected


def _depth_of(value: JsonValue) -> int:
    if isinstance(value, dict):
        return 1 + max(map(_depth_of, value.values()), default=0)
    return 1 + max(map(_depth_of, value), default=0) if isinstance(value, list) else 0


def test_equal_content_has_one_canonical_form() -> None:
    forms = [b'{"b":1.0,"a":[0.10,-0.0]}', b' {"a" : [1e-1, 0],\n"b": 1} ', b'{"b":10e-1,"\\u0061":[0.1,0e5]}']
    assert {canonical(parse_json(form)) for form in forms} == {b'{"a":[0.1,0],"b":1}'}
    assert len({digest_of(parse_json(form)) for form in forms}) == 1


def test_keys_are_ordered_by_utf16_units() -> None:
    assert canonical({"\ufb33": 1, "\U0001f600": 2, "a": 3}) == '{"a":3,"\U0001f600":2,"\ufb33":1}'.encode()


@pytest.mark.parametrize("value", [float("nan"), 2**53, "\ud800", {"\ud800": 1}, {1: 2}])
def test_canonical_form_exists_for_json_only(value: object) -> None:
    with pytest.raises(ValueError):
        canonical(value)
