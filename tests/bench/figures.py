"""A figure: raw rounds of both sides, what they come to, and whether the target is met.

A round measures ours and the bare side next to each other, so its ratio is fair on a busy machine; a figure's ratio is
the median of its rounds' ratios, not the ratio of two medians.
"""

from dataclasses import dataclass
from statistics import median
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Round:
    """One measurement of both sides, taken in turn; `bare` None where there is nothing to compare with."""

    ours: float
    bare: float | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """`of` what, and the bound it must keep. `difference` is ours minus bare."""

    of: Literal["ratio", "ours", "difference"]
    bound: Literal["at least", "at most"]
    value: float

    def __str__(self) -> str:
        return f"{self.of} {self.bound} {self.value:g}"


@dataclass(frozen=True, slots=True)
class Figure:
    """`unit` is of ours and bare. A figure without a target is shown and judged by nobody."""

    name: str
    unit: str
    rounds: tuple[Round, ...]
    target: Target | None = None
    note: str = ""

    @property
    def ours(self) -> float:
        return median(one.ours for one in self.rounds)

    @property
    def bare(self) -> float | None:
        found = [one.bare for one in self.rounds if one.bare is not None]
        return median(found) if found else None

    @property
    def ratio(self) -> float | None:
        found = [one.ours / one.bare for one in self.rounds if one.bare]
        return median(found) if found else None

    @property
    def difference(self) -> float | None:
        found = [one.ours - one.bare for one in self.rounds if one.bare is not None]
        return median(found) if found else None

    @property
    def verdict(self) -> Literal["ok", "missed", "shown"]:
        if self.target is None:
            return "shown"
        value = {"ratio": self.ratio, "ours": self.ours, "difference": self.difference}[self.target.of]
        if value is None:
            return "missed"
        kept = value >= self.target.value if self.target.bound == "at least" else value <= self.target.value
        return "ok" if kept else "missed"

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "unit": self.unit,
            "ours": self.ours,
            "bare": self.bare,
            "ratio": self.ratio,
            "difference": self.difference,
            "target": str(self.target) if self.target else None,
            "verdict": self.verdict,
            "note": self.note,
            "rounds": [{"ours": one.ours, "bare": one.bare} for one in self.rounds],
        }


def table(figures: list[Figure]) -> str:
    """One line per figure, aligned."""
    heads = ("figure", "unit", "ours", "bare", "ratio", "target", "")
    rows = [heads, *(_cells(figure) for figure in figures)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(heads))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if 2 <= column <= 4 else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def _cells(figure: Figure) -> tuple[str, ...]:
    target = str(figure.target) if figure.target else "-"
    return (
        figure.name,
        figure.unit,
        _number(figure.ours),
        _number(figure.bare),
        _number(figure.ratio, digits=2),
        target,
        figure.verdict,
    )


def _number(value: float | None, digits: int = 1) -> str:
    if value is None:
        return "-"
    return f"{value:.{digits}f}" if value < 1000 else f"{value:.0f}"
