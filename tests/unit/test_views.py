"""What may be in an answer, and nothing else."""

import json

import pytest
from pydantic import BaseModel

from facade.examples import JOB, REQUEST
from facade.project import Look, project
from facade.views import EventAnswer, Inbox, JobAnswer, JobList, RequestAnswer
from tests.unit.facts import NOW, event, execution, ledger, step, view
from workflows.contract.events import EventType
from workflows.contract.job import Status

INTERNAL = (
    "run_",
    "worker",
    "host",
    "queue",
    "build",
    "lane",
    "route",
    "identity",
    "token",
    "stack",
    "trace",
    "secret",
)
API_FIELDS = set(JOB)


@pytest.mark.parametrize("answer", [JobAnswer, JobList, RequestAnswer, Inbox])
def test_no_answer_has_an_internal_field(answer: type[BaseModel]) -> None:
    schema = answer.model_json_schema()
    shapes = [schema, *schema.get("$defs", {}).values()]
    fields = {name for shape in shapes for name in shape.get("properties", {})}
    allowed = {"input_tokens", "output_tokens"}
    assert not [name for name in fields - allowed if any(word in name for word in INTERNAL)]


def test_a_job_has_exactly_the_fields_of_the_contract() -> None:
    found = project(Look(execution(view(Status.RUNNING), pending=(step(6),))), ledger(), NOW)
    assert isinstance(found, JobAnswer)
    assert set(json.loads(found.model_dump_json())) == API_FIELDS
    assert "run-7f" not in found.model_dump_json()


def test_an_event_shows_only_the_data_of_its_type() -> None:
    shown = EventAnswer.of(event(2, EventType.JOB_HELD, blocker="awaiting_promotion", worker="host-1"))
    assert shown.data == {"blocker": "awaiting_promotion"}


@pytest.mark.parametrize(("model", "example"), [(JobAnswer, JOB), (RequestAnswer, REQUEST)])
def test_the_documented_examples_are_answers(model: type[BaseModel], example: dict[str, object]) -> None:
    assert json.loads(model.model_validate(example).model_dump_json()) == example
