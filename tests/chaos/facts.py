"""What a chaos run left to be judged: what clients were told, what the tools saw, what the ledger and Temporal hold.

Frozen, so that a test can doctor one fact and see which invariant turns red. Times named `_ns` are of the machine's
monotonic clock, those named `_wall_ns` since 1970; both in nanoseconds and comparable over processes.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]
ACCEPTED = (200, 202)


@dataclass(frozen=True)
class Told:
    """One answer to a submission or retry of one key."""

    status: int
    body: bytes
    answered_ns: int


@dataclass(frozen=True)
class JobFacts:
    """One key: everything that was answered, and how its job looks at the end. `asks`: the tools its policy asks about.
    `seen`: of each reader, statuses in the order seen; reads of two may overlap. `view` None: the last read was not
    answered with 200."""

    key: str
    plugin: str
    principal: str
    asks: frozenset[str] = frozenset()
    told: tuple[Told, ...] = ()
    view: Json | None = None
    events: tuple[Json, ...] = ()
    seen: tuple[tuple[str, ...], ...] = ()

    @property
    def receipt(self) -> Json | None:
        """As the first answer that accepted it had it."""
        return next((json.loads(told.body) for told in self.told if told.status in ACCEPTED), None)


@dataclass(frozen=True)
class CallFacts:
    """A call as the tool recorded it. `key` and `epoch` come with writes only."""

    number: int
    at_ns: int
    at_wall_ns: int
    tool: str
    effect: str
    body: str
    job: str
    key: str | None = None
    epoch: int | None = None

    def __str__(self) -> str:
        sent = f" effect {self.key} epoch {self.epoch}" if self.key else ""
        return f"call {self.number} of {self.tool} ({self.effect}){sent} at {self.at_ns}"


@dataclass(frozen=True)
class CancelFacts:
    """One answer to one cancel, 202 or 200."""

    job: str
    status: int
    asked_ns: int
    answered_ns: int
    requested_at: str | None
    in_flight: tuple[str, ...] = ()


@dataclass(frozen=True)
class VerdictFacts:
    """One answer to one decision. `stands`: the verdict that a 200, 202 or `already-decided` names."""

    job: str
    request: str
    kind: str
    by: str
    wanted: str
    status: int
    stands: str | None = None


@dataclass(frozen=True)
class RevocationFacts:
    """Grants of `principal` were taken away; `answered_ns`: when its 200 was read. `decides`: a person, not an app."""

    principal: str
    asked_ns: int
    answered_ns: int
    decides: bool = False


@dataclass(frozen=True)
class WatchFacts:
    """One watcher over all its reconnects: what it was given, in order, as (seq, type); `end` has no seq."""

    job: str
    how: str
    given: tuple[tuple[int | None, str], ...]
    resumed: int = 0


@dataclass(frozen=True)
class EffectFacts:
    """A row of the ledger."""

    effect_id: str
    job: str
    tool: str
    effect: str
    state: str
    epoch: int
    action_digest: str
    request: str | None = None


@dataclass(frozen=True)
class DecisionFacts:
    """A row of the ledger."""

    job: str
    request: str
    decision: str
    action_digest: str
    decided_by: tuple[str, ...]
    at_wall_ns: int
    answer: Any = None
    effect_id: str | None = None


@dataclass(frozen=True)
class RunFacts:
    """One run of a workflow as Temporal lists it. Runs of one chain have the same `first`."""

    job: str
    run: str
    first: str
    status: str


@dataclass(frozen=True)
class QuietFacts:
    """A census before and after a phase in which only reads were made."""

    before: Mapping[str, int | str]
    after: Mapping[str, int | str]
    reads: int


@dataclass(frozen=True)
class OddAnswer:
    """An answer that nobody should ever get: a 500, a 404 for an accepted job, a text that leaks."""

    what: str
    status: int
    says: str


@dataclass(frozen=True)
class Facts:
    jobs: tuple[JobFacts, ...] = ()
    calls: tuple[CallFacts, ...] = ()
    cancels: tuple[CancelFacts, ...] = ()
    verdicts: tuple[VerdictFacts, ...] = ()
    revocations: tuple[RevocationFacts, ...] = ()
    watches: tuple[WatchFacts, ...] = ()
    effects: tuple[EffectFacts, ...] = ()
    decisions: tuple[DecisionFacts, ...] = ()
    runs: tuple[RunFacts, ...] = ()
    quiet: QuietFacts = field(default_factory=lambda: QuietFacts({}, {}, 0))
    refusing: frozenset[int] = frozenset()
    """Numbers of the calls that the tool answered with a refusal (4xx)."""
    odd: tuple[OddAnswer, ...] = ()


@dataclass(frozen=True)
class Violation:
    rule: str
    job: str
    says: str
    proof: tuple[str, ...] = ()
