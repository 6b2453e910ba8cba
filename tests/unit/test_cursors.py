"""Where a cursor stands in a log that operators reset: never beyond the point where the two courses of events part."""

from datetime import UTC, datetime

import pytest

from facade.cursors import START, Cursor, Place, cursor_at, read_cursor, write_cursor
from workflows.contract.errors import ProblemCode, Refused
from workflows.contract.job import Reset
from workflows.policy.asking import renumbered

AT = datetime(2026, 3, 1, tzinfo=UTC)
A, B = "0000000a", "0000000b"
ONE, TWO = Reset(first=9, tag=A, at=AT), Reset(first=15, tag=B, at=AT)
SIBLING = Reset(first=5, tag=B, at=AT)


@pytest.mark.parametrize(
    ("cursor", "resets", "place"),
    [
        (Cursor(12), (), 12),
        (Cursor(None), (), None),
        (Cursor(20), (ONE,), 8),
        (Cursor(None), (ONE,), 8),
        (Cursor(3), (ONE,), 3),
        (Cursor(12, 9, A), (ONE,), 12),
        (Cursor(None, 9, A), (ONE,), None),
        (Cursor(12, 9, A), (ONE, TWO), 12),
        (Cursor(20, 9, A), (ONE, TWO), 14),
        (Cursor(20), (ONE, TWO), 8),
        (Cursor(20, 15, B), (ONE, TWO), 20),
        (Cursor(20, 9, A), (SIBLING,), 4),
        (Cursor(7, 5, B), (ONE,), 4),
        (Cursor(12, 9, A), (), 8),
        (START, (ONE, TWO), 0),
    ],
)
def test_a_reader_goes_on_where_the_courses_part(cursor: Cursor, resets: tuple[Reset, ...], place: Place) -> None:
    assert cursor.place_in(resets) == place


@pytest.mark.parametrize("place", [1, 8, 9, 14, 15, 40, None])
def test_a_cursor_names_its_course_and_reads_back(place: Place) -> None:
    cursor = cursor_at(place, (ONE, TWO))
    assert read_cursor(write_cursor(cursor)) == cursor
    assert cursor.place_in((ONE, TWO)) == place
    assert (cursor.tag == "") is (place in (1, 8))


@pytest.mark.parametrize(
    "text", ["", "-1", "01", "1.", "1.9-", "1.9-0a", "1.0-0000000a", "end.x-0000000a", "1.9-0000000A"]
)
def test_what_is_no_cursor(text: str) -> None:
    with pytest.raises(Refused) as refused:
        read_cursor(text)
    assert refused.value.code is ProblemCode.CURSOR_INVALID


def test_without_a_reset_a_cursor_is_a_number() -> None:
    assert [write_cursor(cursor_at(place, ())) for place in (0, 9, None)] == ["0", "9", "end"]


def test_requests_of_two_resets_never_have_one_number() -> None:
    numbers = {renumbered(3, tag) for tag in ("00000000", "00000001", "ffffffff", "0010c8e0")}
    assert len(numbers) == 4
    assert all(1_000_000 < number < 1_000_000_000 - 1_000 for number in numbers)
