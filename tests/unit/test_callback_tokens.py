"""Tokens of callbacks: unguessable, stored as a hash, and bound to the credential that went with the call."""

import pytest

from gateway.callback_tokens import hash_of, mint_token, went_with
from gateway.calls.callbacks import public_base
from gateway.settings import load_settings

BEARER = "Bearer canary"


def test_two_tokens_share_nothing_and_fit_a_path() -> None:
    tokens = {mint_token(BEARER) for _ in range(100)}
    assert len({token[:40] for token in tokens}) == len({token[-20:] for token in tokens}) == 100
    assert all(len(token) == 64 and token.replace("-", "").replace("_", "").isalnum() for token in tokens)


def test_the_ledger_knows_a_hash_that_says_nothing_of_the_token() -> None:
    token = mint_token(BEARER)
    known = hash_of(token)
    assert known is not None
    assert (len(known), hash_of(token), token in known) == (64, known, False)
    assert [hash_of(text) for text in ("", token[:-1], token + "A", token[:-1] + "%", token[:-1] + "\n")] == [None] * 5


@pytest.mark.parametrize("other", ["Bearer canary2", "bearer canary", "canary", ""])
def test_a_token_tells_the_credential_of_its_call_from_any_other(other: str) -> None:
    assert went_with(mint_token(BEARER), BEARER)
    assert not went_with(mint_token(BEARER), other)
    assert went_with(mint_token(""), "")
    assert not went_with("A" * 64, BEARER)
    assert not went_with("", BEARER)


@pytest.mark.parametrize(
    ("given", "base"),
    [
        ({"public_url": "https://jobs.example.com/gate/"}, "https://jobs.example.com/gate"),
        ({"development": True, "api_port": 8123}, "http://127.0.0.1:8123"),
        ({"development": True, "api_host": "::1", "api_port": 8123}, "http://[::1]:8123"),
        ({}, None),
        ({"public_url": "jobs.example.com"}, None),
        ({"public_url": "ftp://jobs.example.com"}, None),
        ({"public_url": "https://jobs.example.com/?q=1"}, None),
    ],
)
def test_vendors_are_told_an_address_that_they_can_post_to(given: dict[str, object], base: str | None) -> None:
    assert public_base(load_settings(**given)) == base
