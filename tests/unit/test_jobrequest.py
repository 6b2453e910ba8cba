"""What a submission's body and key must be, and which submissions are the same one."""

import json
from typing import Any

import pytest

from gateway.jobrequest import JobRequest, fingerprint, read_job_request, read_key
from workflows.contract.errors import ProblemCode, Refused
from workflows.contract.ids import Digest, PrincipalId

APP = PrincipalId("app")
CANARY = "canary-5d21"


def asked(text: str) -> JobRequest:
    return read_job_request(text.encode())


def same_as(text: str, principal: PrincipalId = APP) -> Digest:
    return fingerprint(principal, asked(text))


def body(**members: Any) -> str:
    return json.dumps({"plugin": "p", "input": {"canary": CANARY}, **members})


def refusal(text: str) -> Refused:
    with pytest.raises(Refused) as caught:
        asked(text)
    assert CANARY not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    return caught.value


# ---- the fingerprint

SAME = [
    ("key order", '{"input": {"b": 1, "a": [1, 2]}, "plugin": "p"}', '{"plugin": "p", "input": {"a": [1, 2], "b": 1}}'),
    ("white space", '{"plugin":"p","input":{}}', ' {\n"plugin" :\t"p", "input": { } }\r\n'),
    (
        "explicit defaults",
        '{"plugin": "p", "input": {}}',
        '{"plugin": "p", "input": {}, "version": null, "mode": "live", "deadline": null, "timeout_seconds": null,'
        ' "on_blocked": "hold", "session": null, "initiator": null, "budget": null, "labels": {}}',
    ),
    (
        "explicit defaults inside",
        '{"plugin": "p", "input": {}, "budget": {"max_steps": 3}}',
        '{"plugin": "p", "input": {}, "budget": {"max_steps": 3, "max_tokens": null, "max_cost_usd": null}}',
    ),
    ("an empty budget", '{"plugin": "p", "input": {}}', '{"plugin": "p", "input": {}, "budget": {}}'),
    ("1 and 1.0", '{"plugin": "p", "input": {"n": 1}}', '{"plugin": "p", "input": {"n": 1.0}}'),
    ("1 and 10e-1", '{"plugin": "p", "input": {"n": 1}}', '{"plugin": "p", "input": {"n": 10e-1}}'),
    ("0 and -0.0", '{"plugin": "p", "input": {"n": 0}}', '{"plugin": "p", "input": {"n": -0.0}}'),
    ("0.1 and 0.10", '{"plugin": "p", "input": {"n": 0.1}}', '{"plugin": "p", "input": {"n": 0.10}}'),
    ("escapes", '{"plugin": "p", "input": {"n": "\u00e4/"}}', '{"plugin": "p", "input": {"n": "\\u00e4\\/"}}'),
    (
        "60 and 60.0 seconds",
        '{"plugin": "p", "input": {}, "timeout_seconds": 60}',
        '{"plugin": "p", "input": {}, "timeout_seconds": 60.0}',
    ),
    (
        "the same instant in another zone",
        '{"plugin": "p", "input": {}, "deadline": "2040-01-31T12:00:00Z"}',
        '{"plugin": "p", "input": {}, "deadline": "2040-01-31T17:30:00+05:30"}',
    ),
    (
        "the same instant in another spelling",
        '{"plugin": "p", "input": {}, "deadline": "2040-01-31T12:00:00Z"}',
        '{"plugin": "p", "input": {}, "deadline": "2040-01-31t12:00:00.000z"}',
    ),
]


@pytest.mark.parametrize(("one", "other"), [pair[1:] for pair in SAME], ids=[pair[0] for pair in SAME])
def test_two_spellings_of_one_submission_are_the_same(one: str, other: str) -> None:
    assert same_as(one) == same_as(other)


DIFFERENT: list[tuple[str, dict[str, Any]]] = [
    ("plugin", {"plugin": "q"}),
    ("version", {"version": "1.0.0"}),
    ("mode", {"mode": "dry_run"}),
    ("on_blocked", {"on_blocked": "refuse"}),
    ("timeout", {"timeout_seconds": 60}),
    ("deadline", {"deadline": "2040-01-31T12:00:00Z"}),
    ("deadline by a microsecond", {"deadline": "2040-01-31T12:00:00.000001Z"}),
    ("session", {"session": "s"}),
    ("initiator", {"initiator": {"kind": "user", "id": "1"}}),
    ("budget", {"budget": {"max_steps": 3}}),
    ("labels", {"labels": {"a": "b"}}),
    ("a number as text", {"input": {"n": {"deep": ["1", 2]}}}),
    ("array order", {"input": {"n": {"deep": [2, 1]}}}),
    ("a nested value", {"input": {"n": {"deep": [1, 3]}}}),
    ("null and absent in the input", {"input": {"n": {"deep": [1, 2]}, "m": None}}),
    ("true and 1", {"input": {"n": {"deep": [True, 2]}}}),
    ("composed and decomposed text", {"input": {"n": "\u00e4"}}),
    ("the other of them", {"input": {"n": "a\u0308"}}),
]


def test_every_difference_of_content_is_a_different_submission() -> None:
    base: dict[str, Any] = {"plugin": "p", "input": {"n": {"deep": [1, 2]}}}
    bodies = [json.dumps(base), *(json.dumps({**base, **change}) for _name, change in DIFFERENT)]
    prints = {same_as(text) for text in bodies}
    assert len(prints) == len(bodies)


def test_principal_is_part_of_the_fingerprint() -> None:
    assert same_as(body()) != same_as(body(), PrincipalId("other"))


# ---- the shape

INVALID: list[tuple[str, dict[str, Any]]] = [
    ("unknown field", {CANARY: 1}),
    ("null labels", {"labels": None}),
    ("17 labels", {"labels": {f"k{n}": "" for n in range(17)}}),
    ("label key of 65", {"labels": {"k" * 65: ""}}),
    ("empty label key", {"labels": {"": "v"}}),
    ("label value of 257", {"labels": {"k": "v" * 257}}),
    ("label value that is null", {"labels": {"k": None}}),
    ("label value that is a number", {"labels": {"k": 1}}),
    ("mode", {"mode": CANARY}),
    ("mode in capitals", {"mode": "LIVE"}),
    ("null mode", {"mode": None}),
    ("on_blocked", {"on_blocked": CANARY}),
    ("plugin with a slash", {"plugin": f"{CANARY}/x"}),
    ("empty plugin", {"plugin": ""}),
    ("plugin of 61", {"plugin": "p" * 61}),
    ("plugin with a line end", {"plugin": "p\n"}),
    ("plugin that is a number", {"plugin": 1}),
    ("input that is a list", {"input": [CANARY]}),
    ("input that is null", {"input": None}),
    ("input that is text", {"input": CANARY}),
    ("empty version", {"version": ""}),
    ("version that is a number", {"version": 1}),
    ("version of 61", {"version": "1" * 61}),
    ("timeout as text", {"timeout_seconds": "60"}),
    ("timeout with a fraction", {"timeout_seconds": 1.5}),
    ("timeout that is true", {"timeout_seconds": True}),
    ("session with a slash", {"session": f"{CANARY}/"}),
    ("session of 65", {"session": "s" * 65}),
    ("empty session", {"session": ""}),
    ("session with a line end", {"session": "s\n"}),
    ("initiator without an id", {"initiator": {"kind": "user"}}),
    ("initiator with more", {"initiator": {"kind": "user", "id": "1", CANARY: 1}}),
    ("initiator kind", {"initiator": {"kind": f"{CANARY} ", "id": "1"}}),
    ("initiator id of 201", {"initiator": {"kind": "user", "id": "1" * 201}}),
    ("no steps", {"budget": {"max_steps": 0}}),
    ("negative tokens", {"budget": {"max_tokens": -1}}),
    ("money as a number", {"budget": {"max_cost_usd": 0.5}}),
    ("negative money", {"budget": {"max_cost_usd": "-1"}}),
    ("money with an exponent", {"budget": {"max_cost_usd": "1e3"}}),
    ("money that is NaN", {"budget": {"max_cost_usd": "NaN"}}),
    ("money with a line end", {"budget": {"max_cost_usd": "1\n"}}),
    ("budget with more", {"budget": {CANARY: 1}}),
]


@pytest.mark.parametrize("members", [case[1] for case in INVALID], ids=[case[0] for case in INVALID])
def test_fault_of_a_body_is_input_invalid_and_names_the_declared_field(members: dict[str, Any]) -> None:
    refused = refusal(body(**members))
    assert refused.code is ProblemCode.INPUT_INVALID
    field = next(iter(members))
    assert refused.detail.startswith("The body: " if field == CANARY else f"{field}: ")


@pytest.mark.parametrize(
    "text", ["", "null", "1", "[]", '"text"', "{}", '{"plugin": "p"}', '{"input": {}}', "{", "nul"]
)
def test_what_is_not_a_submission_is_input_invalid(text: str) -> None:
    assert refusal(text).code is ProblemCode.INPUT_INVALID


@pytest.mark.parametrize(
    "text", ['{"plugin": "p", "plugin": "p", "input": {}}', '{"plugin": "p", "input": {"n": NaN}}']
)
def test_json_is_read_strictly(text: str) -> None:
    assert refusal(text).code is ProblemCode.INPUT_INVALID


# ---- the deadline's text

MALFORMED: list[Any] = [
    "",
    CANARY,
    "2040-01-31",
    "2040-01-31T12:00:00",
    "2040-01-31 12:00:00Z",
    "2040-01-31T12:00Z",
    "2040-01-31T12:00:00.1234567Z",
    "2040-01-31T12:00:00.Z",
    "2040-01-31T12:00:00,5Z",
    "2040-01-31T12:00:60Z",
    "2040-01-31T24:00:00Z",
    "2040-02-30T12:00:00Z",
    "2040-01-31T12:00:00+0530",
    "2040-01-31T12:00:00+24:00",
    "2040-01-31T12:00:00Z\n",
    " 2040-01-31T12:00:00Z",
    "\u0662\u0660\u0664\u0660-01-31T12:00:00Z",
    "9999-12-31T23:59:59-01:00",
    "0001-01-01T00:00:00+01:00",
    "1893456000",
    "20400131T120000Z",
    1893456000,
    1893456000000,
    True,
    [],
    {},
]


@pytest.mark.parametrize("deadline", MALFORMED, ids=repr)
def test_malformed_deadline_has_its_own_code(deadline: Any) -> None:
    assert refusal(body(deadline=deadline)).code is ProblemCode.DEADLINE_INVALID


def test_deadline_and_timeout_together_are_refused() -> None:
    both = refusal(body(deadline="2040-01-31T12:00:00Z", timeout_seconds=60))
    assert both.code is ProblemCode.DEADLINE_INVALID


@pytest.mark.parametrize(
    "deadline",
    ["2040-01-31T12:00:00Z", "2040-01-31T12:00:00.123456+05:30", "9999-12-31T23:59:59Z", "1970-01-01T00:00:00Z"],
)
def test_whether_a_deadline_may_be_is_not_judged_by_its_text(deadline: str) -> None:
    # Else a replay after its deadline would be refused.
    assert asked(body(deadline=deadline)).instant is not None


# ---- the key


@pytest.mark.parametrize(
    "header", ["k", "K-1", "0", "a" * 200, "a.b_c~d-e", "..a", "-0-", "~a", '"quoted"', '"k"', '"' + "a" * 200 + '"']
)
def test_sound_key_is_the_job_id_without_its_quotes(header: str) -> None:
    assert read_key([header]) == header.strip('"')


BAD_KEYS = [
    "",
    '""',
    '"',
    '"""',
    '"a',
    'a"',
    '""a""',
    "a" * 201,
    '"' + "a" * 201 + '"',
    "a" * 1000,
    ".",
    "..",
    "...",
    "-",
    "_~.-",
    *(f"a{sign}b" for sign in "/%#? :@'\"\\,;+*&=()[]{}<>|^`!$\t\n\x00\x7f"),
    "a%2Fb",
    "a/..",
    "../a",
    " a",
    "a ",
    "\u00e4",
    "\u212a",  # the Kelvin sign, which folds to k
    "\u0661",  # an Arabic digit
    "a, b",
    CANARY + "/",
]


@pytest.mark.parametrize("header", BAD_KEYS, ids=repr)
def test_key_outside_its_alphabet_is_invalid(header: str) -> None:
    with pytest.raises(Refused) as caught:
        read_key([header])
    assert caught.value.code is ProblemCode.IDEMPOTENCY_KEY_INVALID
    assert CANARY not in caught.value.detail


def test_exactly_one_key_header() -> None:
    with pytest.raises(Refused) as missing:
        read_key([])
    assert missing.value.code is ProblemCode.IDEMPOTENCY_KEY_MISSING
    with pytest.raises(Refused) as twice:
        read_key(["a", "a"])
    assert twice.value.code is ProblemCode.IDEMPOTENCY_KEY_INVALID


def test_keys_that_differ_stay_apart() -> None:
    keys = ["k", "K", "k.", "k-", "k_", "k~", "0k", "00k"]
    assert len({read_key([key]) for key in keys}) == len(keys)
