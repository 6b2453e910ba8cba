"""A job's life is not that of a request, a connection or a gateway: only a cancel cancels it (B48)."""

from tests.conftest import FreshStack
from tests.http.submissions import body_with, publish_writer, row_of, submit_bytes
from tests.rig.client import fresh_key
from tests.rig.effect_log import Answer, Behaviour
from tests.rig.wire_client import begun, speak

BUSY_S = 60.0


async def test_a_job_outlives_its_submitter_its_readers_and_its_gateway(fresh_stack: FreshStack) -> None:
    stack = await fresh_stack(apis=2)
    first, second, key = stack.client("app"), stack.client("app", api=1), fresh_key()
    name = await publish_writer(stack.client("operator"), "outlives", stack.effects.url)
    stack.effects.set_behaviour(name, Behaviour(answer=Answer.HOLD, times=1))
    # Submitted on a connection that is cut at once, read on one that is cut in the midst of the step.
    body = body_with(name).encode()
    await speak(first.url, first.token, "POST", "/v1/jobs", body, {"Idempotency-Key": key}, answer=False)
    await stack.effects.wait_for_calls(name, job=key)
    async with begun(first.url, first.token, "GET", f"/v1/jobs/{key}/events") as stream:
        await stream.reader.readuntil(b"event: tool.started")
        stream.leave()
    # Its gateway is killed; another client asks another gateway, then one that never knew of it, on another port.
    stack.apis[0].kill()
    assert (await second.status(key))["status"] == "running"
    newborn = stack.add_api()
    await stack.until_ready(newborn)
    third = stack.client("app", api=2)
    read = await second.status(key, after="0")
    assert read["events"][-1]["type"] == "tool.started"
    stack.effects.release(name)
    ended = await third.until_ended(key, BUSY_S)
    assert (ended["status"], ended["cancel_requested_at"]) == ("succeeded", None)
    events = await third.events(key)
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert events[: len(read["events"])] == read["events"]
    assert "cancel.requested" not in {event["type"] for event in events}
    assert [frame.event for frame in await third.streamed(key)] == events
    assert len(stack.effects.calls(name)) == 1
    # And its receipt is the one that nobody read.
    row = await row_of(stack, key)
    assert row is not None
    again = await submit_bytes(third, body, key)
    assert (again.status_code, again.content) == (200, row.receipt)
