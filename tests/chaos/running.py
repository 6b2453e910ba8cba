"""One run: a stack comes up, is loaded and troubled at once, heals, settles, is read in quiet, and is judged."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from tests.chaos.checker import check
from tests.chaos.collecting import collect, trail
from tests.chaos.facts import Violation
from tests.chaos.load import Load
from tests.chaos.mutants import MUTANTS
from tests.chaos.people import People, revoke_as_planned
from tests.chaos.plan import APIS, APPS, PEOPLE, WORKERS, Plan, app_name
from tests.chaos.reporting import Run
from tests.chaos.settling import LONGEST_OF_A_MUTANT_S, LONGEST_S, be_quiet, settle
from tests.chaos.speaking import Record, Speaker
from tests.chaos.stories import publish
from tests.chaos.trouble import Trouble, stack_is_up
from tests.rig.process import Process
from tests.rig.stack import Api, Stack, free_port

QUIET_S = 3.0
READER = "reader"


class MutantApi(Api):
    def __init__(
        self, name: str, folder: Path, environment: Mapping[str, str], port: int, arguments: Sequence[str]
    ) -> None:
        Process.__init__(self, name, arguments, folder, environment={**environment, "JOBGATE_API_PORT": str(port)})
        self.url = f"http://127.0.0.1:{port}"


async def run_plan(plan: Plan, folder: Path, say: Callable[[str], None], *, mutants: Sequence[str] = ()) -> Run:
    """Raises AssertionError where the stack does not come up, or not again. The folder stays."""
    stack = Stack(folder)
    try:
        await _start(stack, mutants)
        run = await _run(stack, plan, say, LONGEST_OF_A_MUTANT_S if mutants else LONGEST_S)
    except BaseException:
        with suppress(AssertionError):
            await stack.close()
        raise
    try:
        await stack.close()
    except AssertionError as error:
        left = Violation("answers_are_fit", "the end", "the stack did not close as it should", (str(error)[-2000:],))
        return replace(run, violations=(*run.violations, left))
    return run


async def _start(stack: Stack, mutants: Sequence[str]) -> None:
    """Patiently: a machine that is busy may take a minute to start six processes."""
    await stack.start(apis=0, workers=0)
    of_api, of_worker = ([name for name in mutants if MUTANTS[name].role == role] for role in ("api", "worker"))
    program = ["-m", "tests.chaos.mutants"]
    for number in range(APIS):
        if of_api:
            api = MutantApi(f"api-{number}", stack.folder, stack.environment, free_port(), [*program, *of_api])
            stack.apis.append(api)
            api.start()
        else:
            stack.add_api()
    for number in range(WORKERS):
        if of_worker:
            worker = Process(f"worker-{number}", [*program, *of_worker], stack.folder, environment=stack.environment)
            stack.workers.append(worker)
            worker.start()
        else:
            stack.add_worker()
    await stack_is_up(stack)
    operator = stack.client("operator")
    await publish(operator, stack.effects.url)
    apps = {app_name(number): ["jobs:submit", "jobs:read"] for number in range(APPS)}
    people = {name: ["jobs:decide"] for name in PEOPLE}
    reader = {READER: ["jobs:read", "jobs:cancel", "operator:read", "sessions:read"]}
    for who, actions in {**apps, **people, **reader}.items():
        await operator.post("/v1/grants", {"principal": who, "actions": actions, "plugins": ["*"]}, expect=201)


async def _run(stack: Stack, plan: Plan, say: Callable[[str], None], settle_s: float) -> Run:
    record = Record()
    for tool, behaviours in plan.tools.items():
        stack.effects.set_behaviour(tool, *behaviours)
    reader, operator = Speaker(stack, record, READER), Speaker(stack, record, "operator")
    load, people = Load(stack, plan, record, reader), People(stack, record, plan.people_seed)
    trouble = Trouble(stack)
    keeping = asyncio.create_task(trouble.watch())
    deciding = asyncio.create_task(people.decide_while())
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(trouble.run(plan.faults, say))
            group.create_task(revoke_as_planned(operator, plan.revocations, record))
            group.create_task(load.run())
        say("the load is over; everything is brought up again")
        await trouble.heal()
        deciding.cancel()
        settled = await settle(plan, load, people, record, reader, stack, settle_s)
        say(f"settled in {settled:g} s; now only reads")
        await _end_watchers(load)
        quiet = await be_quiet(stack, record, reader, QUIET_S)
        facts = await collect(stack, plan, record, reader, quiet)
    finally:
        for task in (keeping, deciding, *load.watchers):
            task.cancel()
        await asyncio.gather(keeping, deciding, *load.watchers, return_exceptions=True)
    return Run(
        plan=plan,
        facts=facts,
        happened=tuple(trouble.log),
        answers=dict(record.answers),
        violations=tuple(check(facts)),
        settled_s=settled,
        errors=tuple(trail(stack.folder)),
    )


async def _end_watchers(load: Load) -> None:
    """They have ten seconds to hear the end of what has ended; those of jobs that wait are left."""
    if load.watchers:
        done, _ = await asyncio.wait(load.watchers, timeout=10)
        for task in done:
            task.result()
