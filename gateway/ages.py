"""How long ago something was, as people read it at a glance."""

from datetime import timedelta


def age(span: timedelta) -> str:
    """`7 s`, `5 min`, `3 h`, `12 d`: one number, rounded down."""
    seconds = max(int(span.total_seconds()), 0)
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"
