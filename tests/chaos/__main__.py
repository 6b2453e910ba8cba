"""`make chaos`: a mixed load on a real stack whose processes are killed and frozen; then the invariants are checked.

Exit codes: 0 no violation, 1 a violation (or a stack that did not come back). The report is written in both cases.
"""

import argparse
import asyncio
import json
import os
import random
import shutil
import sys
import time
import traceback
from datetime import UTC, datetime
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from tests.chaos.mutants import MUTANTS
from tests.chaos.plan import Plan, draw
from tests.chaos.reporting import NOT_PROVED, Run, text
from tests.chaos.running import run_plan


def describe(plan: Plan) -> str:
    """The plan, as far as it can be said before."""
    faults = "\n".join(f"  {one.at_s:6.1f} s  {one.target:9} {one.how} for {one.for_s:g} s" for one in plan.faults)
    gone = ", ".join(f"{one.principal} at {one.at_s:g} s" for one in plan.revocations)
    return (
        f"seed {plan.seed}: {len(plan.jobs)} jobs in {plan.seconds:g} s; grants taken from {gone}; planned:\n{faults}"
    )


def one_seed(seed: int, options: argparse.Namespace) -> Run | None:
    """None: the stack did not come back, which is no verdict on the invariants, and no pass."""
    plan = draw(seed, options.seconds)
    sys.stdout.write(f"{describe(plan)}\n")
    sys.stdout.flush()
    folder = Path(mkdtemp(prefix=f"jobgate-chaos-{seed}-"))
    try:
        run = asyncio.run(run_plan(plan, folder, say, mutants=options.mutant))
    except (AssertionError, ExceptionGroup):
        sys.stdout.write(f"{traceback.format_exc()}\nseed {seed} came to no verdict; its files are in {folder}\n")
        return None
    if run.violations:
        sys.stdout.write(f"the files of this seed are in {folder}\n")
    else:
        shutil.rmtree(folder, ignore_errors=True)
    sys.stdout.write(f"{text(run)}\n\n")
    sys.stdout.flush()
    return run


def say(line: str) -> None:
    sys.stdout.write(f"  {line}\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, help="the first seed (default: a random one, which is printed)")
    parser.add_argument("--seeds", type=int, default=1, help="how many, counted up from the first (default 1)")
    parser.add_argument("--seconds", type=float, default=120.0, help="of load, for each seed (default 120)")
    parser.add_argument("--out", type=Path, default=Path("chaos-report.json"), help="the file to write")
    parser.add_argument(
        "--mutant", action="append", choices=list(MUTANTS), default=[], help="run against it; it has to be found out"
    )
    options = parser.parse_args()
    first = random.SystemRandom().randrange(1 << 24) if options.seed is None else options.seed
    began = time.monotonic()
    runs = [one_seed(first + number, options) for number in range(options.seeds)]
    report: dict[str, Any] = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "seeds": list(range(first, first + options.seeds)),
        "seconds": options.seconds,
        "mutants": options.mutant,
        "runs": [run.as_json() for run in runs if run is not None],
        "without_verdict": [first + number for number, run in enumerate(runs) if run is None],
        "does_not_prove": NOT_PROVED,
    }
    options.out.write_text(json.dumps(report, indent=1) + "\n")
    violations = sum(len(run.violations) for run in runs if run is not None)
    failed = bool(violations or report["without_verdict"])
    sys.stdout.write(
        f"{options.seeds} seed(s) in {time.monotonic() - began:.0f} s: {violations} violation(s),"
        f" {len(report['without_verdict'])} without a verdict. {options.out} holds everything.\n"
        f"Not proved: {'; '.join(NOT_PROVED)}.\n"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # An SDK process can abort while the interpreter shuts down (design.md section 7).
    os._exit(code)
