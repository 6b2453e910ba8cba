"""What a query computes is believed only as far as the engine accepted it."""

from facade.cursors import Cursor
from facade.project import state_of
from facade.reader import Execution
from facade.sight import Sight
from tests.unit.facts import execution
from tests.unit.fake_reader import FakeReader
from workflows.contract.ids import JobId, Workspace
from workflows.contract.job import EndRecord, Status

DEMO, JOB = Workspace("demo"), JobId("k-1")


class Ahead(FakeReader):
    """The record stands at 2, a query tells of an end at 5, and the engine of none."""

    def __init__(self) -> None:
        super().__init__(5, status=Status.SUCCEEDED)

    async def execution(self, workspace: Workspace, job_id: JobId) -> Execution | None:
        self.calls["describe"] += 1
        behind = FakeReader(2, status=Status.RUNNING)
        record = EndRecord(
            view=behind.view().model_copy(update={"executed": "no"}), events=behind.events(1), segments=()
        )
        return execution(record, None)


async def test_an_end_that_the_engine_has_not_accepted_is_not_told() -> None:
    look, page = await Sight(Ahead()).page(DEMO, JOB, Cursor(0), 100)
    assert page is not None
    assert (look.view, state_of(look).status) == (None, Status.RUNNING)
    assert [one.seq for one in page.events] == [1, 2]


async def test_an_end_between_the_two_looks_is_told() -> None:
    reader = FakeReader(5, status=Status.SUCCEEDED)
    before = iter(
        [execution(EndRecord(view=FakeReader(3, status=Status.RUNNING).view(), events=(), segments=()), None)]
    )
    now = reader.execution

    async def look_by_look(workspace: Workspace, job_id: JobId) -> Execution | None:
        reader.ending = "completed"
        return next(before, None) or await now(workspace, job_id)

    reader.execution = look_by_look
    look, page = await Sight(reader).page(DEMO, JOB, Cursor(0), 100)
    assert page is not None
    assert state_of(look).status is Status.SUCCEEDED
    assert [one.seq for one in page.events] == [1, 2, 3, 4, 5]
