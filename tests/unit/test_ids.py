"""Identifiers are derived, never random, and split without doubt."""

import pytest

from workflows.contract.ids import (
    DIGEST,
    KEY,
    Digest,
    JobId,
    Workspace,
    effect_id,
    request_id,
    sha256_of,
    split_workflow_id,
    workflow_id,
)

DEMO = Workspace("demo")
ACTION = Digest("sha256:4fa0c2" + "0" * 58)


def test_request_id_is_the_number_and_six_digits_of_the_action() -> None:
    assert request_id(1, ACTION) == "r1-4fa0c2"
    assert request_id(12, ACTION) == "r12-4fa0c2"


def test_effect_id_has_not_changed() -> None:
    assert effect_id(DEMO, JobId("k-123"), 2, 0, ACTION) == "eff_ecce556e80798ab303ec565519180a90"


def test_effect_id_differs_in_each_of_its_parts() -> None:
    other = Digest("sha256:" + "1" * 64)
    ids = {
        effect_id(DEMO, JobId("k"), 1, 0, ACTION),
        effect_id(Workspace("demo2"), JobId("k"), 1, 0, ACTION),
        effect_id(DEMO, JobId("k2"), 1, 0, ACTION),
        effect_id(DEMO, JobId("k"), 2, 0, ACTION),
        effect_id(DEMO, JobId("k"), 1, 1, ACTION),
        effect_id(DEMO, JobId("k"), 1, 0, other),
        effect_id(DEMO, JobId("k"), 11, 0, ACTION),
        effect_id(DEMO, JobId("k"), 1, 10, ACTION),
    }
    assert len(ids) == 8


@pytest.mark.parametrize("job_id", ["k-123", "a.b.c", "0", "~x", "A" * 200, "..x"])
def test_workflow_id_splits_at_its_first_dot(job_id: str) -> None:
    assert split_workflow_id(workflow_id(DEMO, JobId(job_id))) == (DEMO, job_id)


@pytest.mark.parametrize(
    "text", ["", "demo", "demo.", ".k", "Demo.k", "de_mo.k", "demo.a/b", "demo...", "demo.k\n", "demo." + "a" * 201]
)
def test_foreign_workflow_id_is_no_job(text: str) -> None:
    assert split_workflow_id(text) is None


@pytest.mark.parametrize("key", [".", "..", "~", "-", "._~-", "", "a" * 201, "a b", "a/b", "a%2f", "é", "a\n"])
def test_key_outside_its_alphabet_does_not_match(key: str) -> None:
    assert KEY.fullmatch(key) is None


def test_digest_is_named_by_its_algorithm() -> None:
    assert sha256_of(b"") == "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert DIGEST.fullmatch(sha256_of(b"x"))
