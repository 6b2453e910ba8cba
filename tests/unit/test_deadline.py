"""Deadline texts (cases.md B38) and what becomes of them."""

from datetime import UTC, datetime, timedelta

import pytest

from workflows.policy.deadline import Denied, parse_instant, remaining, resolve

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        ("2026-03-01T12:00:00Z", NOW),
        ("2026-03-01t12:00:00z", NOW),
        ("2026-03-01T17:30:00+05:30", NOW),
        ("2026-03-01T12:00:00-00:00", NOW),
        ("2026-03-01T12:00:00.5Z", NOW + timedelta(seconds=0.5)),
        ("2026-03-01T12:00:00.000001Z", NOW + MICROSECOND),
        ("9999-12-31T23:59:59Z", datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)),
        ("2026-03-29T02:30:00+01:00", datetime(2026, 3, 29, 1, 30, tzinfo=UTC)),
        ("2024-02-29T00:00:00Z", datetime(2024, 2, 29, tzinfo=UTC)),
    ],
)
def test_instant_with_an_offset_is_read_in_utc(text: str, instant: datetime) -> None:
    read = parse_instant(text)
    assert read == instant
    assert read is not None
    assert read.utcoffset() == timedelta(0)


@pytest.mark.parametrize(
    "text",
    [
        "2026-03-01T12:00:00",
        "2026-03-01",
        "2026-03-01Z",
        "1772366400",
        "1772366400000",
        "2026-03-01T12:00:60Z",
        "2016-12-31T23:59:60Z",
        "2026-03-01 12:00:00Z",
        "2026-03-01T12:00Z",
        "2026-03-01T12:00:00.1234567Z",
        "2026-03-01T12:00:00.Z",
        "2026-03-01T12:00:00+0530",
        "2026-03-01T12:00:00+05",
        "2026-02-30T12:00:00Z",
        "2026-03-01T24:00:01Z",
        "2026-03-01T12:00:00+24:00",
        "2026-03-01T12:00:00 Z",
        " 2026-03-01T12:00:00Z",
        "2026-03-01T12:00:00Z\n",
        "20260301T120000Z",
        "2026-W09-7T12:00:00Z",
        "0000-01-01T00:00:00Z",
        "0001-01-01T00:00:00+01:00",
        "9999-12-31T23:59:59-01:00",
        "\u0662\u0660\u0662\u0666-03-01T12:00:00Z",
        "2026-03-01T12:00:00\u221201:00",
        "tomorrow",
        "",
    ],
)
def test_text_that_is_not_an_instant_is_refused_never_guessed(text: str) -> None:
    assert parse_instant(text) is None


def test_same_instant_in_two_zones_is_one_instant() -> None:
    assert parse_instant("2026-03-01T17:30:00+05:30") == parse_instant("2026-03-01T12:00:00Z")


def test_server_zone_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    try:
        assert parse_instant("2026-03-01T12:00:00Z") == NOW
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    ("deadline", "timeout_seconds", "kind"),
    [
        (NOW + timedelta(hours=1), 60, "invalid"),
        (NOW, None, "invalid"),
        (NOW - timedelta(milliseconds=1), None, "invalid"),
        (NOW + timedelta(hours=1) + MICROSECOND, None, "limit"),
        (datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC), None, "limit"),
        (None, 0, "invalid"),
        (None, -1, "invalid"),
        (None, 3601, "limit"),
        (None, 2**63, "limit"),
    ],
)
def test_deadline_that_can_not_be_is_denied(deadline: datetime | None, timeout_seconds: int | None, kind: str) -> None:
    denied = resolve(deadline, timeout_seconds, NOW, 3600)
    assert isinstance(denied, Denied)
    assert denied.kind == kind


@pytest.mark.parametrize(
    ("deadline", "timeout_seconds", "expected"),
    [
        (None, None, NOW + timedelta(hours=1)),
        (None, 1, NOW + timedelta(seconds=1)),
        (None, 3600, NOW + timedelta(hours=1)),
        (NOW + MICROSECOND, None, NOW + MICROSECOND),
        (NOW + timedelta(hours=1), None, NOW + timedelta(hours=1)),
    ],
)
def test_deadline_within_the_limits_is_absolute(
    deadline: datetime | None, timeout_seconds: int | None, expected: datetime
) -> None:
    assert resolve(deadline, timeout_seconds, NOW, 3600) == expected


def test_remaining_is_never_negative() -> None:
    assert remaining(NOW, NOW - timedelta(seconds=3)) == timedelta(seconds=3)
    assert remaining(NOW, NOW) == remaining(NOW, NOW + timedelta(days=1)) == timedelta(0)
