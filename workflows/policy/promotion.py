"""Whether a phase may change: one rung at a time with evidence, or break-glass with a reason.

Until the ladder is built, the break-glass promotion to `live` is the one that works; the rest says what is missing.
"""

from dataclasses import dataclass

from workflows.contract.job import PHASES, Phase


@dataclass(frozen=True, slots=True)
class Granted:
    phase: Phase


@dataclass(frozen=True, slots=True)
class NotMet:
    """`missing` lists, in operators' words, what the gate still asks for."""

    missing: tuple[str, ...]


def judge(current: Phase, to: Phase, *, break_glass: bool) -> Granted | NotMet:
    if PHASES.index(to) <= PHASES.index(current):
        return NotMet((f"the version is at {current} already; a promotion goes up",))
    if break_glass and to == "live":
        return Granted(to)
    if break_glass:
        return NotMet(("a break-glass promotion to live",))
    return NotMet((f"recorded evidence for {to}: use break_glass with a reason to promote to live",))
