"""A tool's request from its arguments, and its outcome from the reply."""

import json
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from gateway.calls.http_tool import NOT_JSON, TEXT_LIMIT, build_request, read_outcome
from workflows.contract.errors import StepCode, StepError

BASE = "http://shop.test:9001/api/"
JSON_TYPE = {"Content-Type": "application/json; charset=utf-8"}

scalars = st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.text(st.characters(codec="utf-8"))
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner)
)


def test_path_arguments_are_encoded_and_not_sent_again() -> None:
    url, body = build_request("GET", "/invoices/{id}", BASE, {"id": "a/b c?d#é%~", "limit": 3})
    assert url == "http://shop.test:9001/api/invoices/a%2Fb%20c%3Fd%23%C3%A9%25~?limit=3"
    assert body is None


def test_a_body_is_the_canonical_form_of_the_remaining_arguments() -> None:
    url, body = build_request("POST", "/invoices/{id}/refunds", BASE, {"z": None, "id": 7, "b": [1, 2.0], "a": "é"})
    assert url == "http://shop.test:9001/api/invoices/7/refunds"
    assert body == '{"a":"é","b":[1,2],"z":null}'.encode()


def test_a_post_without_arguments_left_sends_an_empty_object() -> None:
    assert build_request("POST", "/a/{id}", BASE, {"id": True}) == ("http://shop.test:9001/api/a/true", b"{}")


def test_query_arguments_repeat_arrays_and_omit_nulls() -> None:
    args: dict[str, Any] = {"tag": ["x", None, "y&"], "on": True, "no": None, "at": 1.0, "deep": {"b": 1, "a": [2]}}
    url, _ = build_request("DELETE", "/items", BASE, args)
    assert urlsplit(url).query == "at=1&deep=%7B%22a%22%3A%5B2%5D%2C%22b%22%3A1%7D&on=true&tag=x&tag=y%26"


@pytest.mark.parametrize("value", ["", ".", "..", "../x", "a/..", "a\\..\\b", None, ["a"], {"a": 1}, "\ud800"])
def test_a_path_argument_that_changes_the_path_is_refused(value: Any) -> None:
    with pytest.raises(StepError) as refused:
        build_request("GET", "/invoices/{id}", BASE, {"id": value})
    assert refused.value.step_code is StepCode.REJECTED


@pytest.mark.parametrize("template", ["/a/../b", "/a//b", "/./a", "/%2e%2E/a", "/a?x=1", "/a#b", "/a b", "/{gone}"])
def test_a_template_that_changes_the_path_is_refused(template: str) -> None:
    with pytest.raises(StepError):
        build_request("GET", template, BASE, {"id": "x"})


def test_two_values_in_one_segment_may_not_make_a_dot_segment() -> None:
    with pytest.raises(StepError):
        build_request("GET", "/x/{a}{b}", BASE, {"a": "", "b": ".."})
    assert build_request("GET", "/x/{a}.{b}/", BASE, {"a": "i", "b": "j"}).url.endswith("/x/i.j/")


@pytest.mark.parametrize("value", [2**53, float("nan"), float("inf"), "\ud800", {"k": [-(2**60)]}])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_value_without_a_canonical_form_is_refused(method: str, value: Any) -> None:
    with pytest.raises(StepError) as refused:
        build_request(method, "/x", BASE, {"v": [value]})
    assert refused.value.step_code is StepCode.REJECTED


@given(st.text(st.characters(codec="utf-8")))
def test_a_path_value_stays_one_segment_and_comes_back_exactly(value: str) -> None:
    try:
        url, _ = build_request("GET", "/a/{v}/z", "http://h", {"v": value})
    except StepError:
        return
    start, before, segment, after = urlsplit(url).path.split("/")
    assert (start, before, unquote(segment), after) == ("", "a", value, "z")
    assert url.isascii()


@given(st.dictionaries(st.text(st.characters(codec="utf-8"), min_size=1), scalars))
def test_scalars_come_back_from_the_query(args: dict[str, Any]) -> None:
    url, _ = build_request("GET", "/q", "http://h", args)
    sent = parse_qsl(urlsplit(url).query, keep_blank_values=True)
    shown = {name: value if isinstance(value, str) else json.dumps(value) for name, value in args.items()}
    assert sent == sorted((name, shown[name]) for name in args if args[name] is not None)


@given(st.dictionaries(st.text(st.characters(codec="utf-8")), values))
def test_a_body_is_byte_for_byte_what_was_shown(args: dict[str, Any]) -> None:
    _, body = build_request("POST", "/q", "http://h", args)
    assert body == rfc8785.dumps(args)


STATUSES = range(100, 600)


def test_the_outcome_of_a_write_follows_from_its_status_alone() -> None:
    for status in STATUSES:
        outcome = read_outcome("write", status, JSON_TYPE, b"{}")
        if 200 <= status < 300:
            assert outcome.state == "confirmed"
        elif 400 <= status < 500 and status not in (408, 429):
            assert outcome.state == "failed"
        else:
            assert outcome.state == "unknown"


@pytest.mark.parametrize("effect", ["read", "idempotent_write"])
def test_the_outcome_of_a_repeatable_call_is_a_result_or_an_attempt_to_repeat(effect: Any) -> None:
    for status in STATUSES:
        if status in (408, 425, 429) or status >= 500:
            with pytest.raises(StepError) as failed:
                read_outcome(effect, status, {"retry-after": "30"}, b"")
            assert failed.value.step_code is (StepCode.RATE_LIMITED if status == 429 else StepCode.UNAVAILABLE)
            assert failed.value.retry_after_s == 30
        else:
            outcome = read_outcome(effect, status, JSON_TYPE, b'{"a": 1}')
            assert outcome.state == ("ok" if 200 <= status < 300 else "error")
            assert outcome.result == {"a": 1}


NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)
LATER = "Thu, 01 Jan 2026 12:01:00 GMT"


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": " 7 "}, 7.0),
        ({"Retry-After": LATER}, 60.0),
        ({"Retry-After": LATER, "Date": "Thu, 01 Jan 2026 12:00:50 GMT"}, 10.0),
        ({"Retry-After": LATER, "Date": "Thu, 01 Jan 2026 13:00:00 GMT"}, 0.0),
        ({"Retry-After": LATER, "Date": "yesterday"}, 60.0),
        ({"Retry-After": "-1"}, None),
        ({"Retry-After": "1e9"}, None),
        ({"Retry-After": "²"}, None),
        ({"Retry-After": "soon"}, None),
        ({}, None),
    ],
)
def test_retry_after_is_read_in_both_spellings(headers: dict[str, str], seconds: float | None) -> None:
    with pytest.raises(StepError) as failed:
        read_outcome("read", 429, headers, b"", now=NOW)
    assert failed.value.retry_after_s == seconds


@pytest.mark.parametrize(
    "body",
    [
        *(b"{", b"NaN", b'{"a": NaN}', b"[Infinity]", b"[1e999]", b'{"a": 1, "a": 2}', b"\xff", b"<html>"),
        *(b"[" * 70 + b"]" * 70, b"[" * 100_000, b"1" * 5000, b'{"\\u0000": 1, "\\u0001": 2}'),
    ],
)
def test_json_that_means_no_one_thing_is_a_typed_failure(body: bytes) -> None:
    read = read_outcome("read", 200, JSON_TYPE, body)
    assert (read.state, read.result, read.message) == ("error", None, NOT_JSON)
    written = read_outcome("write", 200, JSON_TYPE, body)
    assert (written.state, written.result, written.message) == ("confirmed", None, NOT_JSON)


def test_large_integers_stay_exact() -> None:
    body = b'{"id": 9007199254740993, "huge": 123456789012345678901234567890, "price": 0.10}'
    assert read_outcome("read", 200, JSON_TYPE, body).result == {
        "id": 9007199254740993,
        "huge": 123456789012345678901234567890,
        "price": 0.1,
    }


def test_half_surrogates_and_control_characters_never_break_a_later_read() -> None:
    outcome = read_outcome("read", 200, JSON_TYPE, b'{"a\\ud800": ["\\u0000x\\udfff\\n\\ud83d\\ude00"]}')
    assert outcome.result == {"a\ufffd": ["\ufffdx\ufffd\n😀"]}


def test_an_empty_answer_is_null() -> None:
    for headers in (JSON_TYPE, {}, {"content-type": "text/plain"}):
        assert read_outcome("read", 204, headers, b"").result is None
        assert read_outcome("read", 200, headers, b" \n").result is None


@pytest.mark.parametrize(
    ("content_type", "body", "text"),
    [
        ("text/plain", b'{"a": 1}', '{"a": 1}'),
        ("text/plain; charset=latin-1", b"caf\xe9", "café"),
        ("text/plain; charset=base64", b"YQ==", "YQ=="),
        ("text/plain; charset=nonsense", "é".encode(), "é"),
        ("image/png", b"\x89PNG\x00", "\ufffdPNG\ufffd"),
        ("text/plain", b"x" * (TEXT_LIMIT + 9), "x" * (TEXT_LIMIT - 1) + "…"),
        ("", b"plain", "plain"),
    ],
)
def test_an_answer_that_is_not_json_becomes_a_cut_text(content_type: str, body: bytes, text: str) -> None:
    assert read_outcome("read", 200, {"content-type": content_type}, body).result == {"text": text}


def test_the_text_of_a_refusal_survives_a_false_content_type() -> None:
    outcome = read_outcome("write", 422, JSON_TYPE, b"amount too high")
    assert outcome.state == "failed"
    assert outcome.result == {"text": "amount too high"}
    assert outcome.message == "The tool answered with status 422."


@given(st.binary(), st.sampled_from(["application/json", "text/plain", "", "application/problem+json"]))
def test_every_answer_can_be_stored_as_json(body: bytes, content_type: str) -> None:
    outcome = read_outcome("read", 200, {"content-type": content_type}, body)
    json.dumps(outcome.result, ensure_ascii=False, allow_nan=False).encode("utf-8")
