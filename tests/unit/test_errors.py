"""Every problem code has one row, with the status that api.md gives it; the tree renders without input or secrets."""

import pytest

from workflows.contract.errors import (
    PROBLEMS,
    RETRYABLE_STEPS,
    FailureCode,
    JobFailed,
    JobgateError,
    ProblemCode,
    Refused,
    StepCode,
    StepError,
)

STATUS = {
    400: "idempotency-key-missing idempotency-key-invalid cursor-invalid",
    401: "unauthenticated",
    403: "not-permitted not-an-approver self-approval",
    404: "not-found plugin-unknown",
    405: "method-not-allowed",
    409: "blocked local-only not-live-approved session-busy admission-expired key-taken-outside job-not-ended "
    "job-ended already-decided request-voided effect-unreconciled version-exists release-conflict gate-not-met "
    "packet-spent callback-answered workspace-exists",
    410: "job-expired request-expired callback-over",
    412: "action-digest-mismatch",
    413: "payload-too-large",
    415: "unsupported-media-type",
    422: "input-invalid idempotency-key-reused deadline-invalid limit-exceeded",
    429: "too-many-jobs too-many-requests",
    500: "internal",
    503: "engine-unavailable ledger-unavailable blobs-unavailable admission-unknown stopping",
    504: "http-deadline-exceeded",
}
"""api.md, read by hand, and the codes of docs/guide.md where it is silent."""

FAILURES = (
    "deadline_exceeded budget_exceeded authority_revoked model_failed tool_failed effect_unknown input_rejected "
    "result_too_large snapshot_mismatch incompatible_version canary_inconclusive ended_by_operator internal"
)


def test_every_code_has_a_row() -> None:
    assert set(PROBLEMS) == set(ProblemCode)


@pytest.mark.parametrize("code", ProblemCode)
def test_status_is_the_one_of_the_contract(code: ProblemCode) -> None:
    expected = {name: status for status, names in STATUS.items() for name in names.split()}
    assert PROBLEMS[code].status == expected[code]
    assert PROBLEMS[code].title


def test_every_code_of_the_contract_exists() -> None:
    assert {name for names in STATUS.values() for name in names.split()} == {code.value for code in ProblemCode}


def test_failure_codes_are_those_of_the_contract() -> None:
    assert {code.value for code in FailureCode} == set(FAILURES.split())


def test_overload_and_outage_may_be_tried_again_and_refusals_may_not() -> None:
    for problem in PROBLEMS.values():
        if problem.status in (429, 503, 504):
            assert problem.retryable
        elif problem.status != 409:
            assert not problem.retryable


def test_refusal_carries_its_row_and_its_extras() -> None:
    refused = Refused(ProblemCode.BLOCKED, "Not yet.", retry_after_s=3, blocker="release_missing")
    assert (refused.code, refused.problem.status, refused.retry_after_s) == ("blocked", 409, 3)
    assert refused.extras == {"blocker": "release_missing"}
    assert str(refused) == "blocked: Not yet."


def test_errors_are_one_tree_and_cut_their_detail() -> None:
    step = StepError(StepCode.UNAVAILABLE, "x" * 3_000_000, retry_after_s=1.5)
    job = JobFailed(FailureCode.TOOL_FAILED, "y" * 3_000_000)
    assert isinstance(step, JobgateError)
    assert isinstance(job, JobgateError)
    assert (len(step.detail), len(job.detail)) == (500, 500)
    assert (step.step_code, step.retry_after_s, job.failure) == ("unavailable", 1.5, "tool_failed")


def test_only_faults_of_the_moment_are_retryable() -> None:
    assert {code.value for code in RETRYABLE_STEPS} == {
        "unavailable",
        "rate_limited",
        "connect_refused",
        "stale",
        "ledger_unavailable",
        "blobs_unavailable",
        "lost",
    }
