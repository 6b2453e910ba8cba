"""A worker that leaves its metrics in a file when it ends; `--deaf` makes it one that does not hear a cancel.

Run: `python -m tests.recovery.counting_worker --metrics FILE [--deaf]`. The deaf one is the mutant that proves that the
tests of cancel can fail: every check between a stop and a write is off in it, and only in this process.
"""

import argparse
from pathlib import Path
from typing import Any, Literal

from sqlalchemy import Connection
from temporalio import workflow

from activities import worker
from gateway.calls import permits, standing
from gateway.calls.attempts import Attempt
from gateway.ledger.authorities import find_authority
from gateway.ledger.receipts import find_receipt
from gateway.settings import Settings
from gateway.telemetry import Telemetry, start_telemetry
from gateway.temporal import Engine
from workflows.loop import Loop
from workflows.steps import uninterrupted

Told = Literal["current", "stale", "stopped", "closed"]


def count_into(file: Path) -> None:
    class Counting(Telemetry):
        def close(self) -> None:
            file.write_bytes(self.metrics.render()[0])
            super().close()

    def started(service: str, settings: Settings) -> Telemetry:
        plain = start_telemetry(service, settings)
        return Counting(provider=plain.provider, tracer=plain.tracer, metrics=plain.metrics)

    worker.start_telemetry = started


class DeafEngine(Engine):
    async def standing(self, *where: Any, **which: Any) -> Told:
        told = await super().standing(*where, **which)
        return "current" if told == "stopped" else told

    async def cancel(self, workspace: Any, job_id: Any) -> None:
        """A permit that finds a stop cancels the workflow; not here."""


def go_deaf() -> None:
    heard = standing.examine

    def examine(conn: Connection, attempt: Attempt, now: Any, **how: Any) -> standing.Standing | standing.Denied:
        told = heard(conn, attempt, now, **how)
        row = find_receipt(conn, attempt.workspace, attempt.job_id)
        authority = find_authority(conn, attempt.workspace, attempt.job_id)
        if told is not standing.STOPPED or row is None or authority is None:
            return told
        return standing.Standing(row, authority)

    async def end_canceled(self: Loop, work: Any) -> None:
        await uninterrupted(workflow.wait([work]))

    standing.examine = permits.examine = examine
    worker.Engine = DeafEngine
    Loop._may_start = lambda self: None  # pyright: ignore[reportPrivateUsage]
    Loop._end_canceled = end_canceled  # pyright: ignore[reportPrivateUsage]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--metrics", type=Path, required=True)
    parser.add_argument("--deaf", action="store_true")
    options = parser.parse_args()
    count_into(options.metrics)
    if options.deaf:
        go_deaf()
    worker.main([])
