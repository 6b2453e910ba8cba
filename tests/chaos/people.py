"""People of a chaos run: those who decide, again and otherwise too, and the operator who takes grants away.

They are truthful: whoever is asked whether a write took effect looks at the tool's own log.
"""

import asyncio
import random
import time
from typing import Any

from tests.chaos.facts import RevocationFacts, VerdictFacts
from tests.chaos.plan import PEOPLE, Revocation
from tests.chaos.speaking import Record, Reply, Speaker
from tests.chaos.stories import FINANCE, PARKED, REFUSING
from tests.rig.client import Json
from tests.rig.effect_log import EffectLog
from tests.rig.stack import Stack

LOOK_EVERY_S = 0.4
AT_ONCE = 4
OPPOSITE = {"approve": "reject", "reject": "approve"}


class People:
    def __init__(self, stack: Stack, record: Record, seed: int) -> None:
        self._effects: EffectLog = stack.effects
        self._record = record
        self._rng = random.Random(seed)
        self._people = [Speaker(stack, record, name, groups=(FINANCE,)) for name in PEOPLE]

    async def decide_while(self) -> None:
        """Goes on until it is canceled: somebody looks at the inbox and decides some of it."""
        while True:
            await self.decide_some(self._rng.choice(self._people))
            await asyncio.sleep(LOOK_EVERY_S)

    async def decide_some(self, who: Speaker, *, everything: bool = False) -> int:
        """How many open requests there were that may be decided. With `everything` all of them are, for good."""
        inbox = await who.ask("inbox", "GET", "/v1/requests?state=pending", api=self._rng.randrange(who.apis))
        if inbox is None or inbox.status != 200:
            return 0
        waiting = [item for item in inbox.json["data"] if item["plugin"]["name"] != PARKED]
        taken = waiting if everything else self._rng.sample(waiting, min(AT_ONCE, len(waiting)))
        await asyncio.gather(*(self._decide(who, item, final=everything) for item in taken))
        return len(waiting)

    async def _decide(self, who: Speaker, item: Json, *, final: bool) -> None:
        rng, path = self._rng, f"/v1/jobs/{item['job_id']}/requests/{item['request_id']}"
        shown = await who.ask("request", "GET", path, api=rng.randrange(who.apis))
        if shown is None or shown.status != 200:
            return
        request = shown.json
        body = self._verdict(request, final=final)
        await self._give(who, request, path, body)
        chance = 1.0 if final else rng.random()
        if chance < 0.25:
            await self._give(who, request, path, body)
        elif chance < 0.5:
            other = {**body, "decision": OPPOSITE.get(body["decision"], body["decision"])}
            await self._give(rng.choice(self._people), request, path, other)
        elif chance < 0.6:
            await self._give(who, request, path, {**body, "action_digest": "sha256:" + "0" * 64})

    def _verdict(self, request: Json, *, final: bool) -> Json:
        digest: Json = {"action_digest": request["action_digest"]}
        if request["kind"] == "question":
            return {**digest, "decision": "answer", "answer": "yes"}
        if request["kind"] == "reconciliation":
            stops = not final and self._rng.random() < 0.15
            return {**digest, "decision": "settle", "answer": "stop" if stops else self._truth(request)}
        approves = final or self._rng.random() < 0.8
        return {**digest, "decision": "approve" if approves else "reject", "reason": None if approves else "No."}

    def _truth(self, request: Json) -> str:
        if request["tool"] in REFUSING:
            return "did_not_happen"
        calls = self._effects.calls(request["tool"], job=request["job_id"])
        return "happened" if any(call.args == request["args"] for call in calls) else "did_not_happen"

    async def _give(self, who: Speaker, request: Json, path: str, body: Json) -> None:
        reply = await who.ask("decide", "POST", f"{path}/decision", body, api=self._rng.randrange(who.apis))
        if reply is None:
            return
        self._record.verdicts.append(
            VerdictFacts(
                job=request["job_id"],
                request=request["request_id"],
                kind=request["kind"],
                by=who.who,
                wanted=body["decision"],
                status=reply.status,
                stands=_stands(reply),
            )
        )


def _stands(reply: Reply) -> str | None:
    """What the answer says the verdict is; a vote that is short of its quorum is none."""
    if reply.status >= 400 and not reply.is_problem:
        return None
    told: Any = reply.json
    record: Any = told if reply.status in (200, 202) else told.get("record")
    return record["decision"] if record else None


async def revoke_as_planned(operator: Speaker, plan: tuple[Revocation, ...], record: Record) -> None:
    began = asyncio.get_running_loop().time()
    for one in plan:
        await asyncio.sleep(max(began + one.at_s - asyncio.get_running_loop().time(), 0))
        asked = time.monotonic_ns()
        reply = await operator.insist("revoke", "DELETE", f"/v1/principals/{one.principal}")
        if reply is not None and reply.status == 200:
            decides = one.principal in PEOPLE
            record.revocations.append(RevocationFacts(one.principal, asked, reply.answered_ns, decides))
