"""Mutants of the product, one for each invariant: a worker or an API process in which one check is off.

Run: `python -m tests.chaos.mutants NAME...`. `make chaos ARGS="--mutant NAME"` runs a load against it, and has to find
out. Nothing but the process that was started so is changed.
"""

import itertools
import os
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from tests.chaos import mutant_workers as workers

Role = Literal["worker", "api"]


@dataclass(frozen=True)
class Mutant:
    rule: str
    role: Role
    mutate: Callable[[], None]


_times = itertools.count(1)


def _of_answers(change: Callable[[Any, int], Any]) -> None:
    """`change` may make another one of the view of a job, for the n-th read."""
    from facade.window import Window

    plain: Any = Window.job

    async def job(self: Any, viewer: Any, job_id: Any) -> Any:
        return change(await plain(self, viewer, job_id), next(_times))

    Window.job = job


def wavers() -> None:
    """Takes back, now and then, that a job has ended."""
    _of_answers(lambda view, n: view.model_copy(update={"status": "running"}) if n % 3 == 0 else view)


def crashes() -> None:
    def change(view: Any, n: int) -> Any:
        if n % 7 == 0:
            raise RuntimeError("a mutant")
        return view

    _of_answers(change)


def touchy() -> None:
    """Writes a line of audit for each read."""
    file = Path(os.environ["JOBGATE_DATA"]) / "ledger.db"

    def change(view: Any, _: int) -> Any:
        with closing(sqlite3.connect(file, timeout=10)) as db, db:
            line = (1, "a mutant", "read", view.job_id, "{}")
            db.execute("INSERT INTO audit (at, actor, action, subject, detail) VALUES (?, ?, ?, ?, ?)", line)
        return view

    _of_answers(change)


def respells() -> None:
    """Writes a replayed receipt anew."""
    from gateway.routes import jobs

    plain: Any = jobs._admitted  # pyright: ignore[reportPrivateUsage]

    def admitted(told: Any) -> Any:
        return plain(told if told.created else replace(told, receipt=told.receipt + b" "))

    jobs._admitted = admitted  # pyright: ignore[reportPrivateUsage]


def loses() -> None:
    """Never answers one key in ten."""
    from gateway.admission import Admission, unknown

    plain: Any = Admission.admit

    async def admit(self: Any, *what: Any, **how: Any) -> Any:
        if what[1].endswith("7"):
            raise unknown()
        return await plain(self, *what, **how)

    Admission.admit = admit


def stutters() -> None:
    """Resumes one event too early."""
    from facade import routes

    plain: Any = routes.read_cursor

    def read_cursor(text: str) -> Any:
        cursor = plain(text)
        return replace(cursor, seq=max((cursor.seq or 0) - 1, 0))

    routes.read_cursor = read_cursor


def forgets() -> None:
    """Dates a cancel anew each time."""
    from gateway import canceling

    plain: Any = canceling.CancelAnswer

    def answer(**told: Any) -> Any:
        return plain(**{**told, "cancel_requested_at": datetime.now(UTC)})

    canceling.CancelAnswer = answer  # pyright: ignore[reportAttributeAccessIssue]


def flips() -> None:
    """Tells every other person that the opposite was decided."""
    from gateway import deciding

    plain: Any = deciding.outcome

    def outcome(*what: Any) -> Any:
        told = plain(*what)
        other = "reject" if next(_times) % 2 else "approve"
        return told.model_copy(update={"decision": other}) if told.decision in ("approve", "reject") else told

    deciding.outcome = outcome


MUTANTS: dict[str, Mutant] = {
    "respells": Mutant("one_run_per_key", "api", respells),
    "loses": Mutant("every_key_is_answered", "api", loses),
    "repeats": Mutant("write_at_most_once", "worker", workers.repeats),
    "renames": Mutant("one_effect_per_call", "worker", workers.renames),
    "ebbs": Mutant("epochs_rise", "worker", workers.ebbs),
    "deaf": Mutant("nothing_after_cancel", "worker", workers.deaf),
    "late": Mutant("nothing_after_deadline", "worker", workers.late),
    "undecided": Mutant("writes_are_decided", "worker", workers.undecided),
    "blind": Mutant("nothing_after_revocation", "worker", workers.blind),
    "hopeful": Mutant("ledger_agrees", "worker", workers.hopeful),
    "stuck": Mutant("accepted_ends_or_waits", "worker", workers.stuck),
    "wavers": Mutant("status_never_returns", "api", wavers),
    "skips": Mutant("events_have_no_gap", "worker", workers.skips),
    "stutters": Mutant("watchers_miss_nothing", "api", stutters),
    "forgets": Mutant("cancel_has_one_time", "api", forgets),
    "flips": Mutant("one_verdict_per_request", "api", flips),
    "touchy": Mutant("reads_change_nothing", "api", touchy),
    "crashes": Mutant("answers_are_fit", "api", crashes),
}


if __name__ == "__main__":
    chosen = [MUTANTS[name] for name in sys.argv[1:]]
    if chosen[0].role == "worker":
        from activities.worker import main as work

        for one in chosen:
            one.mutate()
        work([])
    else:
        from gateway import api

        for one in chosen:
            one.mutate()
        api.main()
