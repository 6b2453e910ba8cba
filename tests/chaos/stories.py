"""The plugins of a chaos run: what their jobs call, in which classes, and which calls their policies ask people about.

Every call of a script has an `n` of its own, so that the tool's log tells the calls of a job apart.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tests.rig.client import Client, Json
from tests.rig.plugins import call, final, publish_plugin, tool, turn

TIMEOUT_S = 2.0
"""Of every tool: shorter than the lateness of a late answer."""
LATE_S = 3.0
FINANCE = "finance"

TOOLS: Mapping[str, Json] = {
    one["name"]: one
    for one in (
        tool("look", timeout_seconds=TIMEOUT_S),
        tool("find", hidden=True, timeout_seconds=TIMEOUT_S),
        tool("pay", "write", timeout_seconds=TIMEOUT_S, reconcile="find", approval={"groups": [FINANCE]}),
        tool("grant", "write", timeout_seconds=TIMEOUT_S, approval={"groups": [FINANCE], "quorum": 2}),
        tool("ship", "write", timeout_seconds=TIMEOUT_S, reconcile="find"),
        tool("post", "write", timeout_seconds=TIMEOUT_S),
        tool("deny", "write", timeout_seconds=TIMEOUT_S),
        tool("keep", "idempotent_write", timeout_seconds=TIMEOUT_S),
        tool("wait", "write", timeout_seconds=TIMEOUT_S),
    )
}
EFFECTS: Mapping[str, str] = {name: one["effect"] for name, one in TOOLS.items()}
ASKS = frozenset({"pay", "grant", "wait"})
REFUSING = frozenset({"deny"})
"""Tools that answer every call with a 4xx: they record it and do nothing."""
PARKED = "parked"
"""Its jobs wait for a decision that nobody gives."""


@dataclass(frozen=True)
class Story:
    turns: Sequence[Json]
    tools: frozenset[str]
    weight: int = 1
    asks: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "asks", self.tools & ASKS)


def story(*turns: Sequence[Json], weight: int = 1) -> Story:
    called = {one["tool"] for calls in turns for one in calls} - {"ask_human"}
    found = {"find"} if any("reconcile" in TOOLS[name] for name in called) else set[str]()
    return Story([turn(*calls) for calls in turns], frozenset(called | found), weight)


STORIES: Mapping[str, Story] = {
    "reading": story([call("look", {"n": 1}), call("look", {"n": 2})], [call("look", {"n": 3})], weight=2),
    "paying": story([call("look", {"n": 1})], [call("pay", {"n": 2})], weight=4),
    "granting": story([call("grant", {"n": 1})], weight=2),
    "shipping": story([call("ship", {"n": 1})], [call("ship", {"n": 2}), call("ship", {"n": 3})], weight=4),
    "posting": story([call("post", {"n": 1})], [call("post", {"n": 2})], weight=3),
    "denied": story([call("deny", {"n": 1}), call("look", {"n": 2})]),
    "keeping": story([call("keep", {"n": 1}), call("keep", {"n": 2})], [call("keep", {"n": 3})], weight=3),
    "mixed": story(
        [call("look", {"n": 1}), call("keep", {"n": 2}), call("ship", {"n": 3})],
        [call("pay", {"n": 4}), call("ask_human", {"question": "Go on?"}), call("look", {"n": 5})],
        weight=3,
    ),
    PARKED: story([call("wait", {"n": 1})]),
}


def policy(told: Story) -> str:
    """Reads run, what is in `ASKS` asks, other writes run."""
    free = [f'resource == Tool::"{name}"' for name in sorted(told.tools - ASKS) if EFFECTS[name] != "read"]
    lines = ['permit (principal, action, resource) when { resource.effect == "read" };']
    lines.append('permit (principal, action == Action::"call", resource);')
    lines += [f'permit (principal, action == Action::"call_unattended", {one});' for one in free]
    return "\n".join(lines) + "\n"


async def publish(operator: Client, tools_url: str) -> None:
    for name, told in STORIES.items():
        await publish_plugin(
            operator,
            name,
            [*told.turns, final()],
            tools=[TOOLS[one] for one in sorted(told.tools)],
            tools_url=tools_url,
            policy=policy(told),
            limits={"max_steps": 40, "max_duration_seconds": 3600, "max_tokens": 1_000_000},
        )
