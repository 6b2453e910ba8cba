"""Where a plugin's tools can run: the lanes of the settings against the capabilities that it requires.

A lane is a task queue whose workers declare capabilities. Whether anybody polls it is not asked here: a job is
admitted without workers, too, and waits.
"""

from collections.abc import Collection
from dataclasses import dataclass

from gateway.settings import Settings


@dataclass(frozen=True, slots=True)
class Candidate:
    """A lane and what it lacks of the required capabilities; it fits when nothing is missing."""

    lane: str
    task_queue: str
    missing: tuple[str, ...]

    @property
    def fits(self) -> bool:
        return not self.missing


def candidates(settings: Settings, requires: Collection[str]) -> tuple[Candidate, ...]:
    """Every lane, the one that jobs start on first, then in the order of the file."""
    names = sorted(settings.lanes, key=lambda name: name != settings.lane)
    return tuple(
        Candidate(
            lane=name,
            task_queue=settings.lanes[name].task_queue,
            missing=tuple(sorted(set(requires) - set(settings.lanes[name].capabilities))),
        )
        for name in names
    )


def fitting(settings: Settings, requires: Collection[str]) -> Candidate | None:
    """The lane that live tool calls are routed to; None where no lane has what is required."""
    return next((lane for lane in candidates(settings, requires) if lane.fits), None)
