"""Outside text becomes one visible line of bounded length, whatever it holds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflows.contract.text import clean_text, escape_markdown


@given(st.text() | st.text(st.characters(categories=["Cs", "Cc", "Cf", "Zs", "Zl", "Lu"])), st.integers(1, 50))
def test_a_cleaned_text_is_one_bounded_encodable_line(text: str, limit: int) -> None:
    cleaned = clean_text(text, limit)
    assert len(cleaned) <= limit
    assert len(cleaned.splitlines()) <= 1
    assert cleaned.encode().decode() == cleaned
    assert clean_text(cleaned, limit) == cleaned


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("Zürich  12 €", "Zürich 12 €"),
        (" a\r\n\tb\u2028c\x85d ", "a b c d"),
        ("a\x00b\x1bc\x7fd\x9be", "abcde"),
        ("\u202eevil\u2066\u200f\u061c", "evil"),
        ("a\u200bb\ufeffc\u2060d", "abcd"),
        ("a\U000e0041\U000e0042b", "ab"),
        ("lone \ud800 half", "lone half"),
        ("👩\u200d🔬 می\u200cخواهم", "👩\u200d🔬 می\u200cخواهم"),
        ("", ""),
    ],
)
def test_what_can_not_be_seen_is_removed_and_the_rest_is_kept(text: str, cleaned: str) -> None:
    assert clean_text(text, 100) == cleaned


def test_a_long_text_ends_in_an_ellipsis() -> None:
    assert clean_text("abcdef", 6) == "abcdef"
    assert clean_text("abcdefg", 6) == "abcde…"
    assert clean_text("x" * 10_000_000, 6) == "xxxxx…"
    assert clean_text("\x00" * 10_000, 6) == "…"


def test_markdown_becomes_plain_text() -> None:
    assert escape_markdown("[a](http://x) *b* <i>") == r"\[a\]\(http://x\) \*b\* \<i\>"
    assert escape_markdown("plain text, 12") == "plain text, 12"
