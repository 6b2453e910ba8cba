"""Whether a phase may change: up by one rung with what the system itself recorded, or over any number by break-glass.

Pure: (facts, now) -> a verdict with everything that is missing. A green smoke is believed for an hour; the other rungs
ask for evidence of the same digest, however old. Going down needs no evidence and is at once.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import MappingProxyType

from workflows.contract.gates import PHASES, Phase

SMOKE_IS_FRESH_FOR = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Recorded:
    """What the system recorded of this digest (or, for the runtime, of any): when last, None for never. `smoke` is
    the last one and only counts when it was green; `simulation` had a lane that fits."""

    smoke: datetime | None = None
    dry_run: datetime | None = None
    simulation: datetime | None = None
    packet: datetime | None = None


@dataclass(frozen=True, slots=True)
class Need:
    met: Callable[[Recorded, datetime], bool]
    missing: str


NEEDS: Mapping[Phase, tuple[Need, ...]] = MappingProxyType(
    {
        "stateful_noop": (
            Need(
                lambda recorded, now: recorded.smoke is not None and now - recorded.smoke <= SMOKE_IS_FRESH_FOR,
                "a green smoke of this digest within the last hour (jobgate smoke)",
            ),
        ),
        "live_canary": (
            Need(lambda recorded, now: recorded.dry_run is not None, "a dry run of this digest that succeeded"),
            Need(
                lambda recorded, now: recorded.simulation is not None,
                "a simulation of this digest with a lane that fits",
            ),
        ),
        "live": (
            Need(
                lambda recorded, now: recorded.packet is not None,
                "a redeemed packet whose job succeeded, as proof of this digest",
            ),
        ),
    }
)


@dataclass(frozen=True, slots=True)
class Granted:
    phase: Phase


@dataclass(frozen=True, slots=True)
class NotMet:
    """`missing` lists, in operators' words, what the gate still asks for."""

    missing: tuple[str, ...]


def judge(current: Phase, to: Phase, *, break_glass: bool, recorded: Recorded, now: datetime) -> Granted | NotMet:
    """Whether `current` may become `to`. One that skips rungs is told what every rung up to `to` asks for."""
    here, there = PHASES.index(current), PHASES.index(to)
    if there <= here:
        return NotMet((f"it is at {current} already; a promotion goes up",))
    if break_glass:
        return Granted(to)
    missing = [
        need.missing for rung in PHASES[here + 1 : there + 1] for need in NEEDS[rung] if not need.met(recorded, now)
    ]
    if there > here + 1:
        missing.insert(0, f"one rung at a time: {PHASES[here + 1]} comes first")
    return NotMet(tuple(missing)) if missing else Granted(to)


def judge_demotion(current: Phase, to: Phase) -> Granted | NotMet:
    """Down at once, by any number of rungs."""
    if PHASES.index(to) >= PHASES.index(current):
        return NotMet((f"it is at {current}; a demotion goes down",))
    return Granted(to)


def next_rung(current: Phase) -> Phase | None:
    position = PHASES.index(current)
    return PHASES[position + 1] if position + 1 < len(PHASES) else None
