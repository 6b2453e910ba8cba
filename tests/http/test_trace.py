"""One trace, from the HTTP request through workflow and activities to the tool."""

from tests.http.jobs import plugin_of
from tests.rig.client import Client, fresh_key
from tests.rig.effect_log import EffectLog
from tests.rig.plugins import call, final, tool, turn
from tests.rig.stack import Stack

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


async def test_the_tool_is_called_in_the_trace_of_the_request(
    stack: Stack, operator: Client, app: Client, effects: EffectLog
) -> None:
    plugin = await plugin_of(stack, operator, [turn(call("look")), final()], tool("look"))
    answer = await app.http.post(
        "/v1/jobs",
        json={"plugin": plugin, "input": {}},
        headers={"Idempotency-Key": fresh_key(), "traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"},
    )
    assert answer.status_code == 202
    await app.until_ended(answer.json()["job_id"])
    (sent,) = effects.calls("look")
    assert sent.traceparent is not None
    assert sent.traceparent.split("-")[1] == TRACE
