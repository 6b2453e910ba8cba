"""Where a credential may be used, and that nothing that comes back shows it."""

import base64
import copy
import json
import pickle
import urllib.parse
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.allowlist import CredentialEntry, CredentialPolicy
from gateway.credentials import (
    LONGEST_SECRET,
    MASK,
    Scrubber,
    Secret,
    resolve_credential,
)
from workflows.contract.errors import StepCode, StepError
from workflows.contract.ids import Workspace

DEMO = Workspace("demo")
SHOP = "https://api.shop.test/v1"
DEVELOPMENT = CredentialPolicy(development=True)


def listed(ref: str, *hosts: str) -> CredentialPolicy:
    entry = CredentialEntry(ref=ref, workspaces=frozenset({DEMO}), hosts=frozenset(hosts or {"api.shop.test"}))
    return CredentialPolicy(entries=(entry,))


def resolve(policy: CredentialPolicy, ref: str, value: str = "sentinel-1234", base_url: str = SHOP) -> str:
    environment = {ref.partition(":")[2]: value}
    return resolve_credential(policy, ref, workspace=DEMO, base_url=base_url, environment=environment).reveal()


def assert_rejected(policy: CredentialPolicy, ref: str, value: str = "sentinel-1234", base_url: str = SHOP) -> None:
    with pytest.raises(StepError) as rejected:
        resolve(policy, ref, value, base_url)
    assert rejected.value.step_code is StepCode.REJECTED
    assert value not in str(rejected.value)


def test_development_allows_any_ordinary_name() -> None:
    assert resolve(DEVELOPMENT, "env:SHOP_TOKEN") == "sentinel-1234"


@pytest.mark.parametrize(
    "name",
    [
        "JOBGATE_TOKEN",
        "jobgate_token",
        "TEMPORAL_API_KEY",
        "HTTP_PROXY",
        "https_proxy",
        "All_Proxy",
        "NO_PROXY",
        "PROXY",
    ],
)
def test_development_allows_none_of_our_own_names_and_no_proxy(name: str) -> None:
    assert_rejected(DEVELOPMENT, f"env:{name}")


def test_outside_development_nothing_is_allowed_until_listed() -> None:
    assert_rejected(CredentialPolicy(), "env:SHOP_TOKEN")
    assert resolve(listed("env:SHOP_TOKEN"), "env:SHOP_TOKEN") == "sentinel-1234"
    assert_rejected(listed("env:SHOP_TOKEN"), "env:SHOP_TOKEN2")


def test_development_does_not_loosen_a_listed_entry_or_open_files() -> None:
    policy = listed("env:SHOP_TOKEN").model_copy(update={"development": True})
    assert_rejected(policy, "env:SHOP_TOKEN", base_url="https://evil.test")
    assert_rejected(policy, "file:/etc/hostname")


@pytest.mark.parametrize(
    "base_url",
    [
        "https://evil.test/v1",
        "https://api.shop.test.evil.test",
        "https://api.shop.test@evil.test",
        "https://evil.test/?x=api.shop.test",
        "ftp://api.shop.test",
        "api.shop.test",
        "",
        "https://[",
    ],
)
def test_a_host_outside_the_entry_is_refused(base_url: str) -> None:
    assert_rejected(listed("env:SHOP_TOKEN"), "env:SHOP_TOKEN", base_url=base_url)


@pytest.mark.parametrize("base_url", ["https://API.shop.test:8443/x", "http://api.shop.test.", SHOP])
def test_a_host_is_the_same_in_any_spelling(base_url: str) -> None:
    assert resolve(listed("env:SHOP_TOKEN", "Api.Shop.Test"), "env:SHOP_TOKEN", base_url=base_url)


def test_another_workspace_is_refused() -> None:
    refusal = listed("env:SHOP_TOKEN").refusal("env:SHOP_TOKEN", workspace=Workspace("other"), base_url=SHOP)
    assert refusal == "The credential reference is not allowed for this workspace and host."


@pytest.mark.parametrize("ref", ["SHOP_TOKEN", "env:", "env:A B", "env:A\n", "file:relative", "vault:x", "ENV:A", ""])
def test_a_malformed_reference_is_refused(ref: str) -> None:
    assert_rejected(DEVELOPMENT, ref)


@pytest.mark.parametrize(
    "value", ["", "abc", "a b\nc", "tok\x00en", "tökens", " tok", "tok ", "x" * (LONGEST_SECRET + 1)]
)
def test_a_value_that_could_not_be_scrubbed_or_sent_is_refused(value: str) -> None:
    with pytest.raises(StepError) as rejected:
        resolve(DEVELOPMENT, "env:SHOP_TOKEN", value)
    assert rejected.value.step_code is StepCode.REJECTED


def test_a_missing_value_is_refused() -> None:
    with pytest.raises(StepError):
        resolve_credential(DEVELOPMENT, "env:SHOP_TOKEN", workspace=DEMO, base_url=SHOP, environment={})


def test_a_file_is_read_again_each_time(tmp_path: Path) -> None:
    file = tmp_path / "token"
    policy = listed(f"file:{file}")
    with pytest.raises(StepError):
        resolve(policy, f"file:{file}")
    for value in ("first-value", "second-value"):
        file.write_text(value + "\r\n")
        assert resolve(policy, f"file:{file}") == value


def test_a_secret_does_not_show_itself() -> None:
    secret = Secret("sentinel-1234")
    for shown in (str(secret), repr(secret), f"{secret}", f"{[secret]}", "%s" % secret):  # noqa: UP031  # each way of showing
        assert "sentinel" not in shown
    for leak in (pickle.dumps, copy.copy, json.dumps):
        with pytest.raises(TypeError):
            leak(secret)


TOKEN = "sk+/live \"q\\u'&<%é"[:-1] + "=1234"


def spellings(value: str) -> dict[str, str]:
    quoted = urllib.parse.quote(value, safe="")
    in_json = json.dumps(value)[1:-1]
    return {
        "plain": value,
        "url": quoted,
        "url, lower case": "".join(part.lower() if part.startswith("%") else part for part in _percents(quoted)),
        "url, some safe": urllib.parse.quote(value),
        "form": urllib.parse.quote_plus(value),
        "url twice": urllib.parse.quote(quoted, safe=""),
        "every byte": "".join(f"%{byte:02X}" for byte in value.encode()),
        "json": in_json,
        "json, slash": in_json.replace("/", "\\/"),
        "json, all escaped": "".join(f"\\u{ord(char):04X}" for char in value),
        "json in json": json.dumps(in_json)[1:-1],
        "repr": repr(value)[1:-1],
        "html": value.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;").replace("'", "&#x27;"),
        "html, numeric": "".join(f"&#{ord(char)};" for char in value),
        "hex": value.encode().hex(),
        "HEX": value.encode().hex().upper(),
        **{
            f"base64 {before!r} {after!r} {encode.__name__}": encode((before + value + after).encode()).decode()
            for before in ("", "u", "us", "user:")
            for after in ("", ":", ":p", ":pw")
            for encode in (base64.b64encode, base64.urlsafe_b64encode)
        },
    }


def _percents(text: str) -> list[str]:
    head, *rest = text.split("%")
    return [head, *(piece for part in rest for piece in ("%" + part[:2], part[2:]))]


@pytest.mark.parametrize("value", [TOKEN, "tok1", "Basic dXNlcjpwYXNz", "12345678", "\\a\\\\b", "a b c d"])
def test_every_spelling_of_a_secret_is_removed(value: str) -> None:
    scrubber = Scrubber([Secret(value)])
    for name, spelling in spellings(value).items():
        scrubbed = scrubber.scrub_text(f"<<{spelling}>>")
        assert scrubbed.startswith("<<"), name
        assert scrubbed.endswith(">>"), name
        assert MASK in scrubbed, name
        if name.startswith("base64"):
            _assert_not_in_base64(scrubbed[2:-2], value)
        else:
            assert scrubbed == f"<<{MASK}>>", name


def _assert_not_in_base64(scrubbed: str, value: str) -> None:
    """What is left at either side, decoded in any alignment, holds at most two characters of the value."""
    for rest in scrubbed.split(MASK):
        raw = rest.translate(str.maketrans("-_", "+/")).rstrip("=")
        text = base64.b64decode(raw[: len(raw) // 4 * 4] + "A" * 4).decode("latin-1")
        assert not any(value[at : at + 3] in text for at in range(len(value) - 2))


def test_the_header_value_goes_as_a_whole() -> None:
    scrubber = Scrubber([Secret("sentinel-1234")], ["Bearer sentinel-1234"])
    assert scrubber.scrub_text("got 'Bearer sentinel-1234' not Bearer  sentinel-1234") == (
        f"got '{MASK}' not Bearer  {MASK}"
    )


def test_json_is_scrubbed_in_values_keys_and_numbers() -> None:
    scrubber = Scrubber([Secret("12345678"), Secret("sentinel-1234")])
    value: Any = {"a": ["sentinel-1234", 12345678, 1.5, True, None], "sentinel-1234": {"n": 9912345678}}
    assert scrubber.scrub_json(value) == {"a": [MASK, MASK, 1.5, True, None], MASK: {"n": f"99{MASK}"}}


def test_headers_and_foreign_bytes_are_scrubbed_in_place() -> None:
    scrubber = Scrubber([Secret("sentinel-1234")])
    assert scrubber.scrub_headers({"x-echo": "sentinel-1234"}) == {"x-echo": MASK}
    assert scrubber.scrub_bytes(b"\xff\x00sentinel-1234\xfe\xc3\xa9") == b"\xff\x00[secret]\xfe\xc3\xa9"


def test_without_secrets_nothing_changes() -> None:
    assert Scrubber([]).scrub_bytes(b"\xffanything") == b"\xffanything"


printable = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=4, max_size=40)


@given(printable, st.text(max_size=20), st.text(max_size=20))
def test_no_secret_is_ever_left(value: str, before: str, after: str) -> None:
    scrubber = Scrubber([Secret(value)])
    for text in (before + value + after, before + urllib.parse.quote(value) + after):
        scrubbed = scrubber.scrub_text(text).replace(MASK, "\x00")
        assert value not in scrubbed
    assert value not in scrubber.scrub_text(json.dumps({"x": before + value})).replace(MASK, "\x00")


@given(st.binary(max_size=200))
def test_what_holds_no_secret_is_left_byte_for_byte(data: bytes) -> None:
    assert Scrubber([Secret("sentinel-1234")]).scrub_bytes(data) == data
