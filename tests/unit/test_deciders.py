"""Nobody decides about their own job, however the submitter spells who caused it."""

import pytest

from gateway.deciders import is_own_job
from workflows.contract.ids import PrincipalId
from workflows.contract.job import Initiator

ANN = PrincipalId("ann")
APP = PrincipalId("app")


@pytest.mark.parametrize(
    ("kind", "id", "own"),
    [
        ("user", "ann", True),
        ("user", "user:ann", True),
        ("person", "user:ann", True),
        ("user", "Ann", True),
        ("user", " ann\t", True),
        ("user", "\uff41nn", True),
        ("user", "anne", False),
        ("ann", "bob", False),
        ("user", "", False),
    ],
)
def test_an_initiator_is_the_same_person_however_it_is_spelled(kind: str, id: str, own: bool) -> None:
    assert is_own_job(ANN, APP, APP, Initiator(kind=kind, id=id)) is own


def test_principal_and_submitter_are_exact() -> None:
    assert is_own_job(ANN, ANN, None, None)
    assert is_own_job(ANN, APP, ANN, None)
    assert not is_own_job(ANN, PrincipalId("Ann"), APP, None)
