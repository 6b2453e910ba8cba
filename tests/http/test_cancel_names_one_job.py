"""A cancel reaches the job that it names and no other, and nothing of an ended one changes, whatever became of it."""

from tests.http.jobs import waiting_job, waiting_plugin
from tests.http.test_retry import retried
from tests.http.test_sessions import fresh_session
from tests.rig.client import Client, Json, problem
from tests.rig.stack import Stack


async def ended(app: Client, approver: Client, plugin: str, **body: str) -> str:
    """A job whose one request was rejected, and that then succeeded."""
    job, request = await waiting_job(app, plugin, **body)
    assert (await approver.decide(job, request, "reject")).status_code == 200
    assert (await app.until_ended(job))["status"] == "succeeded"
    return job


async def whole(app: Client, job: str) -> tuple[Json, list[Json], int, str]:
    """Status, events and result of a job that has ended."""
    result = await app.http.get(f"/v1/jobs/{job}/result")
    return {**await app.status(job), "as_of": None}, await app.events(job), result.status_code, _plain(result.text)


def _plain(text: str) -> str:
    """A problem's `instance` is another one each time."""
    return text if '"instance"' not in text else text.partition('"instance"')[0]


async def cancel_changes_nothing(app: Client, job: str) -> None:
    before = await whole(app, job)
    answers = [await app.cancel(job) for _ in range(3)]
    assert {(answer.status_code, answer.text) for answer in answers} == {(200, answers[0].text)}
    told = answers[0].json()
    view = before[0]
    assert (told["status"], told["finished_at"]) == (view["status"], view["finished_at"])
    assert (told["cancel_requested_at"], told["in_flight"]) == (view["cancel_requested_at"], [])
    assert await whole(app, job) == before


async def test_a_job_whose_request_was_rejected_stays_what_it_is(
    stack: Stack, operator: Client, app: Client, approver: Client
) -> None:
    await cancel_changes_nothing(app, await ended(app, approver, await waiting_plugin(stack, operator)))


async def test_an_erased_job_stays_what_it_is(stack: Stack, operator: Client, app: Client, approver: Client) -> None:
    job = await ended(app, approver, await waiting_plugin(stack, operator))
    assert (await operator.http.delete(f"/v1/jobs/{job}/content")).status_code == 200
    await cancel_changes_nothing(app, job)


async def test_a_source_whose_retry_is_open_is_over_and_the_retry_goes_on(
    stack: Stack, operator: Client, app: Client, approver: Client
) -> None:
    job = await ended(app, approver, await waiting_plugin(stack, operator))
    again = await retried(app, job)
    [request] = await app.until_request(again)
    await cancel_changes_nothing(app, job)
    view = await app.status(again)
    assert (view["status"], view["cancel_requested_at"]) == ("waiting_for_human", None)
    assert (await approver.decide(again, request, "approve")).status_code == 200
    assert (await app.until_ended(again))["status"] == "succeeded"
    # The mutant: the retry is canceled by its own id.
    other = await retried(app, again)
    await app.cancel(other)
    assert (await app.until_ended(other))["status"] == "canceled"


async def test_an_ended_job_of_a_session_is_over_and_the_open_one_goes_on(
    stack: Stack, operator: Client, app: Client, approver: Client
) -> None:
    plugin, session = await waiting_plugin(stack, operator), fresh_session()
    first = await ended(app, approver, plugin, session=session)
    second, request = await waiting_job(app, plugin, session=session)
    await cancel_changes_nothing(app, first)
    assert (await app.status(second))["status"] == "waiting_for_human"
    assert (await approver.decide(second, request, "reject")).status_code == 200
    assert (await app.until_ended(second))["status"] == "succeeded"


async def test_a_job_of_another_workspace_is_not_there_and_goes_on(stack: Stack, operator: Client, app: Client) -> None:
    job, _ = await waiting_job(app, await waiting_plugin(stack, operator))
    assert problem(await stack.client("app", workspace="elsewhere").cancel(job)) == (404, "not-found")
    assert (await app.status(job))["status"] == "waiting_for_human"
    await app.cancel(job)
    assert (await app.until_ended(job))["status"] == "canceled"
