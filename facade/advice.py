"""`next_action`: for every state of a job, one code and one sentence that an app's owner understands. Pure."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from facade.views import NextAction, NextCode
from workflows.contract.errors import FailureCode
from workflows.contract.gates import Eligibility
from workflows.contract.job import JobView, Mode, OpenRequest, RequestKind, Status

NOTHING_TWICE = "What took effect is not repeated by itself."
AFTER_FAILURE: Mapping[FailureCode, tuple[NextCode, str]] = MappingProxyType(
    {
        FailureCode.DEADLINE_EXCEEDED: (
            "retry",
            f"Retry it with more time. {NOTHING_TWICE}",
        ),
        FailureCode.BUDGET_EXCEEDED: (
            "change_input",
            "Submit it with a larger budget under a new key; that job will not know what this one has done.",
        ),
        FailureCode.AUTHORITY_REVOKED: ("ask_operator", "An operator must give the authority back first."),
        FailureCode.MODEL_FAILED: (
            "retry",
            f"The model did not answer. Retry it later. {NOTHING_TWICE}",
        ),
        FailureCode.TOOL_FAILED: (
            "retry",
            f"A call did not succeed. Retry it once its reason is gone. {NOTHING_TWICE}",
        ),
        FailureCode.EFFECT_UNKNOWN: (
            "retry",
            f"It is known by now what came of its last write: retry it. {NOTHING_TWICE}",
        ),
        FailureCode.INPUT_REJECTED: ("change_input", "This job can not run as it was submitted."),
        FailureCode.RESULT_TOO_LARGE: ("change_input", "Ask for less: the result is too large to keep."),
        FailureCode.SNAPSHOT_MISMATCH: ("ask_operator", "An operator must publish the plugin again."),
        FailureCode.INCOMPATIBLE_VERSION: (
            "ask_operator",
            "An operator must bring back the version that fits this job.",
        ),
        FailureCode.CANARY_INCONCLUSIVE: ("ask_operator", "An operator must look at the canary run."),
        FailureCode.ENDED_BY_OPERATOR: ("ask_operator", "Ask the operator why, then retry it."),
        FailureCode.INTERNAL: ("ask_operator", "Tell the operator the job's id."),
    }
)

IN_DOUBT = "It is not known whether its last write took effect. Find out, and have an approver settle it; then retry."

_MUST: Mapping[RequestKind, str] = MappingProxyType(
    {
        "approval": "An approver must decide",
        "question": "Somebody must answer",
        "reconciliation": "Somebody must find out whether a write took effect, and settle",
    }
)


def advise(
    view: JobView, status: Status, mode: Mode, asked: Sequence[OpenRequest], *, overdue: bool, in_doubt: bool = False
) -> NextAction:
    """`asked` are the open requests; `status` may differ from the view's where the ledger holds a stop. `in_doubt`:
    what came of a write is not known."""
    if in_doubt and status in (Status.CANCELED, Status.FAILED):
        return NextAction(code="ask_operator", message=IN_DOUBT)
    code, message = _advice(view, status, mode, asked, overdue)
    return NextAction(code=code, message=message)


def _advice(
    view: JobView, status: Status, mode: Mode, asked: Sequence[OpenRequest], overdue: bool
) -> tuple[NextCode, str]:
    if status is Status.SUCCEEDED:
        return "none", "Nothing is left to do."
    if status is Status.CANCELED:
        return "none", f"Canceled. Retry it to run it after all. {NOTHING_TWICE}"
    if status is Status.FAILED:
        return AFTER_FAILURE[view.failure.code if view.failure is not None else FailureCode.INTERNAL]
    if status is Status.CANCELING:
        return "wait", "The job is being canceled; what was sent already is awaited."
    if overdue:
        return "wait", "The deadline has passed; the job ends within seconds."
    if view.failure is not None:  # an open job that can not go on for now
        return AFTER_FAILURE[view.failure.code]
    if asked:
        said = [
            f"{must} {', '.join(request.request_id for request in asked if request.kind == kind)}."
            for kind, must in _MUST.items()
            if any(request.kind == kind for request in asked)
        ]
        return "decide", " ".join(said)
    if status is Status.QUEUED and mode == "live" and view.eligibility is not Eligibility.LIVE_APPROVED:
        return "ask_operator", "Held: not yet approved to run live. An operator must open the gate."
    if status is Status.QUEUED:
        return "wait", "The job waits for its turn; it starts by itself."
    return "wait", "The job is running; nothing is asked of you."
