"""Simulations: where a version could run, for operators. Judged as a submission is, under a watch; nothing is executed.

What it saw is then recorded as evidence, which the gate to live_canary asks for: green where a lane fits and nothing
but the version's phase blocks it. Names of lanes are operators' words and reach no app.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

from sqlalchemy import Connection

from gateway.doors import Doors, need_scope, permit
from gateway.jobrequest import JobRequest, read_job_request
from gateway.judging import refusal_of, terms_of
from gateway.known import look
from gateway.lanes import Candidate, candidates
from gateway.ledger.catalog import PluginVersionRow, find_plugin_version
from gateway.ledger.evidence import EvidenceRow, insert_evidence
from gateway.ledger.journal import record
from gateway.plugins import plugin_name, plugin_unknown
from gateway.previewing import UNJUDGED, measured
from gateway.scopes import Action, Caller
from gateway.seams import Seen
from workflows.contract.errors import ProblemCode, Refused
from workflows.contract.gates import Blocker, Eligibility
from workflows.policy.eligibility import Verdict


@dataclass(frozen=True, slots=True)
class Place:
    """A lane against what the version requires; `pollers_seen_at`: when a worker last asked it for work, None where the
    engine remembers none."""

    candidate: Candidate
    pollers_seen_at: datetime | None


@dataclass(frozen=True, slots=True)
class Simulation:
    verdict: Verdict
    places: tuple[Place, ...]


async def simulate(doors: Doors, caller: Caller, name: str, version: str, body: bytes) -> Simulation:
    """Raises Refused: who may, PLUGIN_UNKNOWN, INPUT_INVALID where the body names another plugin or version, and what
    a submission of this body would be refused for beside eligibility."""
    need_scope(caller, Action.OPERATOR_READ)
    asked = _of(read_job_request(body), name, version)

    def find(conn: Connection) -> PluginVersionRow:
        permit(caller, conn, Action.OPERATOR_READ, asked.plugin)
        row = find_plugin_version(conn, caller.workspace, asked.plugin, version)
        if row is None:
            raise plugin_unknown()
        return row

    row = await doors.ledger.read(find)
    simulation, seen = await measured(doors, _judge(doors, caller, asked, row), Simulation(UNJUDGED, ()))
    await _keep(doors, caller, row, simulation, seen)
    return simulation


def _of(asked: JobRequest, name: str, version: str) -> JobRequest:
    if asked.plugin != plugin_name(name):
        raise Refused(ProblemCode.INPUT_INVALID, "plugin: The body must name the plugin of the address.")
    if asked.version not in (None, version):
        raise Refused(ProblemCode.INPUT_INVALID, "version: Leave it out, or name the version of the address.")
    return asked.model_copy(update={"version": version})


async def _judge(doors: Doors, caller: Caller, asked: JobRequest, row: PluginVersionRow) -> Simulation:
    known = await doors.ledger.read(partial(look, caller, None, asked, action=Action.OPERATOR_READ))
    weighed = await doors.judge.weigh(caller, asked, known)
    if refusal_of(weighed.verdict, asked) is None:
        terms_of(weighed, asked)
    found = candidates(doors.settings, row.manifest.get("requires") or ())
    return Simulation(weighed.verdict, tuple([await _look_at(doors, one) for one in found]))


async def _look_at(doors: Doors, candidate: Candidate) -> Place:
    polled = await doors.engine.histories.polling(candidate.task_queue)
    seen = [poller.last_access_time.ToDatetime(tzinfo=UTC) for poller in polled]
    return Place(candidate, max(seen, default=None))


async def _keep(doors: Doors, caller: Caller, row: PluginVersionRow, simulation: Simulation, seen: Seen) -> None:
    verdict, now = simulation.verdict, datetime.now(UTC)
    green = (
        any(place.candidate.fits for place in simulation.places)
        and (verdict.eligibility is not Eligibility.BLOCKED or verdict.blocker is Blocker.PHASE_BLOCKED_NOOP)
        and not seen.raised()
    )
    evidence = EvidenceRow(
        workspace=caller.workspace,
        plugin=row.name,
        version=row.version,
        digest=row.digest,
        kind="simulation",
        green=green,
        detail={
            "eligibility": verdict.eligibility,
            "blocker": verdict.blocker,
            "lanes": [place.candidate.lane for place in simulation.places if place.candidate.fits],
            "side_effects": seen.raised(),
        },
        by=caller.principal,
        at=now,
    )

    def write(conn: Connection) -> None:
        permit(caller, conn, Action.OPERATOR_READ, row.name)
        insert_evidence(conn, evidence)
        record(
            conn,
            caller.workspace,
            at=now,
            actor=caller.principal,
            action="plugin.simulated",
            subject=f"{row.name}@{row.version}",
            green=green,
            eligibility=verdict.eligibility,
        )

    await doors.ledger.write(write)
