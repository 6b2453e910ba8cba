"""The plan of a chaos run: every choice that can be made beforehand, from one seed.

The same seed, length and stories give the same plan. What comes of it is not the same: processes and clients race.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from tests.chaos.stories import EFFECTS, LATE_S, PARKED, REFUSING, STORIES
from tests.rig.effect_log import Answer, Behaviour

How = Literal["kill", "freeze", "stop"]
Mishap = Literal["none", "cut", "twice", "other_body"]
Watch = Literal["none", "stream", "poll"]

APIS, WORKERS = 2, 2
APPS = 8
PEOPLE = ("ann", "bob", "cyd", "dan", "eve")
JOBS_A_SECOND = 3.0
LOAD_SHARE = 0.85
"""Of the time, in which jobs are submitted; what is left is for those on the way."""
FAULT_EVERY_S = (1.5, 4.0)


@dataclass(frozen=True)
class Fault:
    """`for_s`: how long it is down or frozen."""

    at_s: float
    target: str
    how: How
    for_s: float


@dataclass(frozen=True)
class JobPlan:
    """One key. `cut`: the first sending is cut off unanswered; `twice`: two at once at two APIs; `other_body`: the key
    is tried with other content, too."""

    key: str
    at_s: float
    story: str
    app: int
    api: int
    timeout_s: int
    mishap: Mishap
    watch: Watch
    leaves_after: int
    """A watcher by stream leaves after so many events, and resumes."""
    cancel_after_s: float | None
    retried: bool


@dataclass(frozen=True)
class Revocation:
    at_s: float
    principal: str


@dataclass(frozen=True)
class Plan:
    seed: int
    seconds: float
    faults: tuple[Fault, ...]
    jobs: tuple[JobPlan, ...]
    revocations: tuple[Revocation, ...]
    tools: Mapping[str, Sequence[Behaviour]]
    people_seed: int


def app_name(number: int) -> str:
    return f"svc-{number}"


def draw(seed: int, seconds: float) -> Plan:
    """Each part has a stream of its own, so that more of one does not change the others."""
    root = random.Random(seed)
    parts = [random.Random(root.getrandbits(64)) for _ in range(4)]
    return Plan(
        seed=seed,
        seconds=seconds,
        faults=_faults(parts[0], seconds),
        jobs=_jobs(parts[1], seed, seconds),
        revocations=_revocations(parts[2], seconds),
        tools={name: _behaviours(parts[3], name, seconds) for name in sorted(EFFECTS)},
        people_seed=root.getrandbits(64),
    )


def _faults(rng: random.Random, seconds: float) -> tuple[Fault, ...]:
    targets = {**{f"api-{n}": 3 for n in range(APIS)}, **{f"worker-{n}": 4 for n in range(WORKERS)}, "temporal": 3}
    found: list[Fault] = []
    at = rng.uniform(1, 3)
    while at < seconds - 1:
        target = rng.choices(list(targets), list(targets.values()))[0]
        how = rng.choices(("kill", "freeze", "stop"), (4, 4, 2))[0]
        longest = 4.0 if target == "temporal" else 9.0
        found.append(Fault(round(at, 2), target, how, round(rng.uniform(0.3, longest), 2)))
        at += rng.uniform(*FAULT_EVERY_S)
    return tuple(found)


def _jobs(rng: random.Random, seed: int, seconds: float) -> tuple[JobPlan, ...]:
    weights = [told.weight for told in STORIES.values()]
    found: list[JobPlan] = []
    for number in range(int(seconds * LOAD_SHARE * JOBS_A_SECOND)):
        name = rng.choices(list(STORIES), weights)[0]
        hasty = name != PARKED and rng.random() < 0.1
        found.append(
            JobPlan(
                key=f"c{seed}-{number}",
                at_s=round(number / JOBS_A_SECOND + rng.uniform(0, 0.3), 2),
                story=name,
                app=rng.randrange(APPS),
                api=rng.randrange(APIS),
                timeout_s=rng.randint(2, 6) if hasty else 1800,
                mishap=rng.choices(("none", "cut", "twice", "other_body"), (5, 2, 2, 1))[0],
                watch=rng.choices(("none", "stream", "poll"), (4, 4, 2))[0],
                leaves_after=rng.randint(2, 12),
                cancel_after_s=round(rng.uniform(0, 5), 2) if name != PARKED and rng.random() < 0.25 else None,
                retried=name != PARKED and rng.random() < 0.2,
            )
        )
    return tuple(found)


def _revocations(rng: random.Random, seconds: float) -> tuple[Revocation, ...]:
    """Of apps from the second half of them, one in 30 s and at most two thirds of these; of one person."""
    apps = [app_name(n) for n in range(APPS // 2, APPS)]
    rng.shuffle(apps)
    count = min(max(round(seconds / 30), 1), len(apps) * 2 // 3)
    gone = [Revocation(round(rng.uniform(0.3, 0.85) * seconds, 2), name) for name in apps[:count]]
    gone.append(Revocation(round(rng.uniform(0.4, 0.8) * seconds, 2), rng.choice(PEOPLE[2:])))
    return tuple(sorted(gone, key=lambda one: one.at_s))


def _behaviours(rng: random.Random, tool: str, seconds: float) -> tuple[Behaviour, ...]:
    """How the tool answers its calls, in turn; after the last one, plainly."""
    if tool in REFUSING:
        return (Behaviour(status=409, body={"error": "no"}),)
    usual = Behaviour(Answer.FIND, times=1) if tool == "find" else Behaviour(times=1)
    odd = (
        Behaviour(Answer.DROP_AFTER_RECORDING, times=1),
        Behaviour(Answer.DROP_BEFORE_RECORDING, times=1),
        Behaviour(status=502, times=1),
        Behaviour(usual.answer, delay_seconds=LATE_S, times=1),
        Behaviour(usual.answer, delay_seconds=0.5, times=1),
        Behaviour(usual.answer, delay_seconds=1.2, times=1),
    )
    turns = [rng.choice(odd) if rng.random() < 0.45 else usual for _ in range(int(seconds * 4))]
    return (*turns, Behaviour(usual.answer, times=None))
