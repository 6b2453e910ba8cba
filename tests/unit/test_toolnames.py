"""Every tool has one name that any provider takes, and no two tools share one."""

import re

from hypothesis import given
from hypothesis import strategies as st

from activities.toolnames import provider_names, spelled

ALPHABET = "ab._-"


def test_names_that_fit_stay_and_others_never_take_them() -> None:
    assert provider_names(["a.b", "a_b", "a-b"]) == {"a.b": "a_b-2", "a_b": "a_b", "a-b": "a-b"}


def test_a_longest_name_stays_within_the_bound() -> None:
    names = ["x" * 63 + ".", "x" * 63 + "_"]
    assert provider_names(names) == {names[0]: "x" * 62 + "-2", names[1]: names[1]}


@given(st.lists(st.text(ALPHABET, min_size=1, max_size=64), max_size=30))
def test_the_mapping_is_one_to_one_and_fits(names: list[str]) -> None:
    offered = provider_names(names)
    assert set(offered) == set(names)
    assert len(set(offered.values())) == len(offered)
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name) for name in offered.values())


@given(st.text(max_size=200))
def test_a_made_up_name_is_spelled_in_the_alphabet(name: str) -> None:
    assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", spelled(name))
