"""Records the history of every named scenario that has none yet: `python -m tests.replay.record [NAME]...`.

A recorded history is never edited and never overwritten: it stands for the jobs that are running out there. To record
one anew before a release, delete its file first.
"""

import asyncio
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.testing import WorkflowEnvironment

from tests.replay.scenarios import SCENARIOS, Scenario
from tests.workflow.jobs import SEARCH_ATTRIBUTES, Jobs

ROOT = Path(__file__).parents[2]
HISTORIES = Path(__file__).parent / "histories"


async def record(jobs: Jobs, scenario: Scenario) -> list[Path]:
    """Run one scenario and write a file per run of its job; a job that rolled over has `NAME.1`, `NAME.2`, ..."""
    name = scenario.__name__
    job = await scenario(jobs, name)
    await job.end()
    runs = await job.runs()
    written: list[Path] = []
    for number, run in enumerate(runs, 1):
        history = await jobs.client.get_workflow_handle(job.handle.id, run_id=run).fetch_history()
        path = HISTORIES / (f"{name}.json" if len(runs) == 1 else f"{name}.{number}.json")
        with path.open("x", encoding="utf-8") as file:
            file.write(history.to_json() + "\n")
        written.append(path)
    return written


async def main(names: Sequence[str]) -> int:
    HISTORIES.mkdir(exist_ok=True)
    have = {path.name.split(".")[0] for path in HISTORIES.glob("*.json")}
    wanted = [s for s in SCENARIOS if (s.__name__ in names if names else s.__name__ not in have)]
    if kept := sorted({scenario.__name__ for scenario in wanted} & have):
        sys.stderr.write(f"kept, never overwritten: {', '.join(kept)}\n")
        return 1
    attributes = [part for name, kind in SEARCH_ATTRIBUTES.items() for part in ("--search-attribute", f"{name}={kind}")]
    logging.getLogger("temporalio.activity").setLevel(logging.ERROR)  # faults are part of the stories
    async with await WorkflowEnvironment.start_local(  # pyright: ignore[reportUnknownMemberType] - SDK's own kwargs
        dev_server_existing_path=str(ROOT / ".venv/bin/temporal"),
        dev_server_extra_args=attributes,
        dev_server_log_level="never",
        data_converter=pydantic_data_converter,
        identity="recorder",
    ) as env:
        jobs = Jobs(env.client, None, "record", cached=100)
        async with jobs.worker():
            for paths in await asyncio.gather(*(record(jobs, scenario) for scenario in wanted)):
                for path in paths:
                    sys.stdout.write(f"{path.relative_to(ROOT)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1:])))
