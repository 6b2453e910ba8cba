"""What the tools may have seen: each rule reads the effect log's calls against what clients were told and the ledger.

The slacks are the product's own promises plus what a busy machine adds: a permit lives 250 ms between its checks and
the bytes, and the log dates a call when its process gets to read it.
"""

import hashlib
import itertools
import json
from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime

import rfc8785

from tests.chaos.facts import CallFacts, EffectFacts, Facts, Violation

PERMIT_NS = 250_000_000
DATED_LATE_NS = 100_000_000
NS = 1_000_000_000
HAPPENED = ("confirmed", "reconciled")


def write_at_most_once(facts: Facts) -> Iterator[Violation]:
    """A `write` reaches its tool at most once for each effect id."""
    for key, calls in _by_key(facts, "write").items():
        if len(calls) > 1:
            yield Violation(
                "write_at_most_once", calls[0].job, f"{key} reached its tool {len(calls)} times", _shown(*calls)
            )


def one_effect_per_call(facts: Facts) -> Iterator[Violation]:
    """The same call of the same job never goes out under two ids. No script proposes one call twice."""
    asked: dict[tuple[str, str, str], dict[str | None, CallFacts]] = defaultdict(dict)
    for call in facts.calls:
        if call.effect != "read":
            asked[call.job, call.tool, call.body].setdefault(call.key, call)
    for (job, tool, body), found in asked.items():
        if len(found) > 1 or None in found:
            says = f"{tool} {body} went out under {len(found)} ids: {sorted(map(str, found))}"
            yield Violation("one_effect_per_call", job, says, _shown(*found.values()))
    approved: dict[tuple[str, str], set[str]] = defaultdict(set)
    for row in facts.effects:
        if row.request is not None:
            approved[row.job, row.request].add(row.effect_id)
    for (job, request), ids in approved.items():
        if len(ids) > 1:
            yield Violation("one_effect_per_call", job, f"{request} permitted {sorted(ids)}")


def epochs_rise(facts: Facts) -> Iterator[Violation]:
    """Each sending of one idempotent write has a higher epoch than the one before, and none above the ledger's."""
    ledger = {row.effect_id: row for row in facts.effects}
    for key, calls in _by_key(facts, "idempotent_write").items():
        epochs = [call.epoch or 0 for call in calls]
        if any(later <= before for before, later in itertools.pairwise(epochs)):
            yield Violation("epochs_rise", calls[0].job, f"{key} arrived with the epochs {epochs}", _shown(*calls))
        row = ledger.get(key)
        if row is not None and epochs[-1] > row.epoch:
            yield Violation("epochs_rise", calls[0].job, f"{key}: the ledger stands at {row.epoch}", _shown(*calls))


def nothing_after_cancel(facts: Facts) -> Iterator[Violation]:
    """After the first answer to cancel no write starts that no answer named; no read later than its look is good."""
    named: dict[str, set[str]] = defaultdict(set)
    since: dict[str, int] = {}
    for cancel in facts.cancels:
        named[cancel.job] |= set(cancel.in_flight)
        since[cancel.job] = min(since.get(cancel.job, cancel.answered_ns), cancel.answered_ns)
    for call in facts.calls:
        answered = since.get(call.job)
        if answered is None or (call.effect != "read" and call.key in named[call.job]):
            continue
        slack = PERMIT_NS + DATED_LATE_NS if call.effect == "read" else 0
        if call.at_ns > answered + slack:
            late = (call.at_ns - answered) / 1e6
            says = f"a {call.effect} arrived {late:.0f} ms after the answer to cancel, which did not name it"
            yield Violation("nothing_after_cancel", call.job, says, (*_shown(call), f"answered at {answered}"))


def nothing_after_deadline(facts: Facts) -> Iterator[Violation]:
    """No call starts after the deadline of the job's receipt."""
    deadlines: dict[str, str] = {job.key: receipt["deadline"] for job in facts.jobs if (receipt := job.receipt)}
    for call in facts.calls:
        deadline = deadlines.get(call.job)
        if deadline is None:
            continue
        late = call.at_wall_ns - datetime.fromisoformat(deadline).timestamp() * NS
        if late > PERMIT_NS + DATED_LATE_NS:
            says = f"a {call.effect} arrived {late / 1e6:.0f} ms after the deadline {deadline}"
            yield Violation("nothing_after_deadline", call.job, says, _shown(call))


def writes_are_decided(facts: Facts) -> Iterator[Violation]:
    """Where the policy asks, or the ledger says that a request was asked for, a write has an approval of these very
    bytes that was given before and not taken back by then."""
    jobs = {job.key: job for job in facts.jobs}
    rows = {row.effect_id: row for row in facts.effects}
    verdicts = {(one.job, one.request): one for one in facts.decisions}
    gone = {one.principal: one.answered_ns for one in facts.revocations if one.decides}
    for call in facts.calls:
        job, row = jobs.get(call.job), rows.get(call.key or "")
        receipt = None if job is None else job.receipt
        if call.effect == "read" or job is None or row is None or receipt is None:
            continue
        if call.tool not in job.asks and row.request is None:
            continue
        verdict = verdicts.get((call.job, row.request or ""))
        says = None
        if verdict is None or verdict.decision != "approve":
            says = f"{call.tool} was called and {row.request} holds no approval"
        elif verdict.action_digest != _digest(call, receipt["plugin"]["digest"]):
            says = f"{call.tool} was called with other bytes than {row.request} approved"
        elif verdict.at_wall_ns > call.at_wall_ns + DATED_LATE_NS:
            says = f"{call.tool} was called before {row.request} was approved"
        elif late := [one for one in verdict.decided_by if call.at_ns > gone.get(one, call.at_ns) + DATED_LATE_NS]:
            says = f"{call.tool} was called on the word of {late[0]}, who might not decide any more"
        if says is not None:
            yield Violation("writes_are_decided", call.job, says, _shown(call, row, *([verdict] if verdict else [])))


def nothing_after_revocation(facts: Facts) -> Iterator[Violation]:
    """After the answer that took a principal's grants away, no call of its jobs starts."""
    gone = {one.principal: one.answered_ns for one in facts.revocations if not one.decides}
    answered = {job.key: gone[job.principal] for job in facts.jobs if job.principal in gone}
    for call in facts.calls:
        since = answered.get(call.job)
        if since is not None and call.at_ns > since + DATED_LATE_NS:
            says = f"a {call.effect} arrived {(call.at_ns - since) / 1e6:.0f} ms after the revocation was answered"
            yield Violation("nothing_after_revocation", call.job, says, _shown(call))


def ledger_agrees(facts: Facts) -> Iterator[Violation]:
    """What the ledger says of an effect is what its tool saw, or what a person said of it."""
    seen: dict[str, list[CallFacts]] = defaultdict(list)
    for call in facts.calls:
        if call.key is not None:
            seen[call.key].append(call)
    told = {one.effect_id: one.answer for one in facts.decisions if one.effect_id is not None}
    for row in facts.effects:
        calls = seen.pop(row.effect_id, [])
        says = _disagrees(row, calls, told.get(row.effect_id), facts.refusing)
        if says is not None:
            yield Violation("ledger_agrees", row.job, f"{row.effect_id} is {row.state}: {says}", _shown(row, *calls))
    for key, calls in seen.items():
        yield Violation("ledger_agrees", calls[0].job, f"the ledger does not know {key}", _shown(*calls))


def _disagrees(row: EffectFacts, calls: list[CallFacts], told: object, refusing: frozenset[int]) -> str | None:
    if calls and (calls[0].job, calls[0].tool) != (row.job, row.tool):
        return "its tool saw it for another job or tool"
    match row.state:
        case "confirmed" if not calls:
            return "no tool saw it"
        case "reconciled" if not calls and told != "happened":
            return "no tool saw it, and no person said so"
        case "failed" if told != "did_not_happen" and any(call.number not in refusing for call in calls):
            return "its tool did it, and no person said otherwise"
        case "intended" if any(call.epoch == row.epoch for call in calls):
            return "its tool saw the very epoch of which nothing left"
        case _:
            return None


def _by_key(facts: Facts, effect: str) -> dict[str, list[CallFacts]]:
    found: dict[str, list[CallFacts]] = defaultdict(list)
    for call in facts.calls:
        if call.effect == effect and call.key is not None:
            found[call.key].append(call)
    return found


def _digest(call: CallFacts, plugin: str) -> str:
    """design.md section 2, worked out anew from the bytes that arrived."""
    whole = {"tool": call.tool, "version": plugin, "args": json.loads(call.body or "{}")}
    return f"sha256:{hashlib.sha256(rfc8785.dumps(whole)).hexdigest()}"


def _shown(*facts: object) -> tuple[str, ...]:
    return tuple(str(one) for one in facts)
