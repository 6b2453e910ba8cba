"""GET how ready a plugin version or the runtime is. What is looked at, and who may, is gateway/readiness.py's."""

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict

from facade.documented import refusals
from gateway import plugins, readiness
from gateway.doors import At, By
from gateway.rungs import MEANINGS, RungName
from workflows.contract.errors import ProblemCode as P
from workflows.contract.events import Timestamp
from workflows.contract.gates import Phase

router = APIRouter(prefix="/v1", tags=["promotions"])


class ReadinessRung(BaseModel):
    """One rung, judged by its own evidence. `observed_at`: when what is told was seen; null: it never was."""

    rung: RungName
    reached: bool
    evidence: str
    observed_at: Timestamp | None
    proves: str
    does_not_prove: str


class LadderReadiness(BaseModel):
    """`phase` is the one in force: the lower one of version and runtime. All six rungs, always in this order."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "phase": "blocked_noop",
                    "rungs": [
                        {
                            "rung": "blocked_noop",
                            "reached": False,
                            "evidence": "Never smoked: jobgate smoke --plugin support-refund.",
                            "observed_at": None,
                            "proves": MEANINGS["blocked_noop"].proves,
                            "does_not_prove": MEANINGS["blocked_noop"].does_not_prove,
                        }
                    ],
                    "next_gate": "stateful_noop",
                    "not_yet": "Not yet: this version is at blocked_noop; stateful_noop asks for a green smoke.",
                }
            ]
        }
    )

    phase: Phase
    rungs: tuple[ReadinessRung, ...]
    next_gate: Phase | None
    not_yet: str

    @classmethod
    def of(cls, seen: readiness.Readiness, *, runtime: bool) -> "LadderReadiness":
        return cls(
            phase=seen.phase,
            rungs=tuple(
                ReadinessRung(
                    rung=one.rung,
                    reached=one.reached,
                    evidence=one.evidence,
                    observed_at=one.observed_at,
                    proves=MEANINGS[one.rung].runtime if runtime else MEANINGS[one.rung].proves,
                    does_not_prove=MEANINGS[one.rung].does_not_prove,
                )
                for one in seen.rungs
            ),
            next_gate=seen.next_gate,
            not_yet=seen.not_yet,
        )


@router.get(
    "/plugins/{name}/versions/{version}/readiness",
    operation_id="readVersionReadiness",
    responses=refusals(P.NOT_PERMITTED, P.PLUGIN_UNKNOWN),
)
async def version_readiness(name: str, version: str, doors: At, caller: By) -> LadderReadiness:
    """How far this version is proven, rung by rung. Looking changes nothing."""
    seen = await readiness.of_version(doors, caller, plugins.plugin_name(name), version)
    return LadderReadiness.of(seen, runtime=False)


@router.get("/readiness", operation_id="readRuntimeReadiness", responses=refusals(P.NOT_PERMITTED))
async def runtime_readiness(doors: At, caller: By) -> LadderReadiness:
    """The same for the runtime, by what this workspace's jobs showed of it."""
    return LadderReadiness.of(await readiness.of_runtime(doors, caller), runtime=True)
