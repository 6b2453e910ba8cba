"""The people of the demo: who is granted what, who votes, who is refused, and what taking a grant back ends.

Each of them calls with a development token of their own. What they find is checked against the shop's own table.
"""

from dataclasses import dataclass
from functools import cached_property

from gateway.cli import render
from gateway.cli.approvals import show_request
from gateway.cli.client import Gateway, Json, Reply, job_path
from gateway.cli.example import PLUGIN, READ_TOOL, job_once, post_job
from gateway.cli.proof import Story, code_of, reply_to
from gateway.cli.watching import follow, live_line, show_event

FINANCE = ["finance"]
ANA, BEN, HELPDESK = "ana", "ben", "helpdesk"
SECOND_INVOICE = "inv_20"
WHY = "the overage is real"


@dataclass
class People:
    """`app` submits the job, and is granted what a decision needs besides: its refusal is for the job being its own."""

    story: Story
    app: Gateway
    operator: Gateway

    @cached_property
    def ana(self) -> Gateway:
        return self._of_finance(ANA)

    @cached_property
    def ben(self) -> Gateway:
        return self._of_finance(BEN)

    def grant(self, second: str) -> None:
        """`second`: the operator who approves what the first one proposes."""
        self._grant(second, "promotions:approve")
        for person in (ANA, BEN, "app"):
            self._grant(person, "jobs:decide")
        self.story.tell(
            f"granted: promotions:approve to {second}; jobs:decide to {ANA}, to {BEN} and to app, which submits"
        )

    def vote_first(self, request: str) -> None:
        """The request as it is shown; the submitter is refused, and one person's word counts once."""
        story = self.story
        waiting = str(job_once(self.app, story.key, lambda view: view["status"] == "waiting_for_human")["status"])
        tools = _tools(story.events)
        story.check("before any vote: the job waits", waiting == "waiting_for_human", waiting)
        story.check("before any vote: calls of tools", tools == [READ_TOOL], ", ".join(tools) or "none")
        asked = self.ana.get(_request_path(story.key, request)).json
        show_request(story.voice, asked)
        refused = _answer(self._of_finance("app"), story.key, asked)
        story.tell(
            f"app, in finance too but the job's principal, approves: HTTP {refused.status} {code_of(refused)}", "yellow"
        )
        own = [refused.status, code_of(refused)] == [403, "self-approval"]
        story.check("the job's principal approves it", own, f"refused, {refused.status} {code_of(refused)}")
        first = _answer(self.ana, story.key, asked)
        story.tell(f"{ANA} approves: HTTP {first.status}, {_tally(first)}", "yellow")
        again = _answer(self.ana, story.key, asked)
        story.tell(f"{ANA} approves again: HTTP {again.status}, still {_tally(again)}", "yellow")
        seen = self.ana.get(_request_path(story.key, request)).json
        voters = [vote["principal"] for vote in seen["votes"]]
        once = voters == [ANA] and seen["state"] == "pending" and again.status == 200
        story.check(f"{ANA} approves twice: votes", once, f"{len(voters)} of 2, the request is {seen['state']}")

    def vote_second(self, request: str) -> None:
        story = self.story
        made = story.stage.refunds
        story.check("after one vote of two: refunds in the shop", not made, len(made))
        asked = self.ben.get(_request_path(story.key, request)).json
        second = _answer(self.ben, story.key, asked)
        story.tell(f"{BEN} approves the same digest: HTTP {second.status}, {_tally(second)}", "yellow")
        seen = self.ben.get(_request_path(story.key, request)).json
        by = sorted(seen["decided_by"] or ())
        story.check("who decided", by == [ANA, BEN] and seen["state"] == "approved", f"{' and '.join(by)}")

    def revoke(self) -> None:
        """A second job waits for its second person when its principal loses the grant."""
        story = self.story
        key = story.named(f"refund-{SECOND_INVOICE}")
        story.chapter("A second job waits for people while the grant it runs on is taken back")
        grant = self._grant(HELPDESK, "jobs:submit")
        post_job(Gateway(story.stage.data, HELPDESK), key, SECOND_INVOICE)
        story.tell(f"{HELPDESK} was granted jobs:submit and submitted {key}")
        events: list[Json] = []
        request = ""
        with live_line(story.voice, "watching") as line:
            for event in follow(self.app, story.quiet, key):
                show_event(story.voice, event)
                events.append(event)
                line.update(str(event["message"]))
                if event["type"] == "request.opened":
                    request = str(event["data"]["request_id"])
                    first = _answer(self.ana, key, self.ana.get(_request_path(key, request)).json)
                    story.tell(f"{ANA} approves: HTTP {first.status}, {_tally(first)}", "yellow")
                elif event["type"] == "request.voted":
                    self.operator.delete(f"/v1/grants/{grant}")
                    story.tell(f"the operator revokes the grant of {HELPDESK}", "yellow")
        self._read_the_end(key, request, events)

    def _read_the_end(self, key: str, request: str, events: list[Json]) -> None:
        story = self.story
        view = self.app.get(job_path(key)).json
        story.tell(f"{key}  {view['status']}", render.STATUS_STYLES.get(view["status"], "bold"))
        story.aside(str(render.member(view, "failure").get("message")))
        asked = self.ben.get(_request_path(key, request)).json
        late = _answer(self.ben, key, asked)
        story.tell(f"{BEN} approves all the same: HTTP {late.status} {code_of(late)}", "yellow")
        ended = [view["status"], render.member(view, "failure").get("code")]
        story.check(
            "grant revoked: the waiting job", ended == ["failed", "authority_revoked"], ", ".join(map(str, ended))
        )
        story.check("grant revoked: its request", asked["state"] == "voided", asked["state"])
        refused = late.status == 409 and code_of(late) in ("request-voided", "job-ended")
        story.check("grant revoked: the second approval", refused, f"refused, {late.status} {code_of(late)}")
        tools = _tools(events)
        story.check("grant revoked: calls of tools", tools == [READ_TOOL], ", ".join(tools) or "none")
        refunds = [refund.invoice for refund in story.stage.refunds]
        unpaid = len(refunds) == 1 and SECOND_INVOICE not in refunds
        story.check("grant revoked: the shop's table", unpaid, f"{', '.join(refunds) or 'empty'}, as before")

    def _grant(self, principal: str, action: str) -> str:
        asked = {"principal": principal, "actions": [action], "plugins": [PLUGIN]}
        return str(self.operator.post("/v1/grants", asked).json["grant_id"])

    def _of_finance(self, principal: str) -> Gateway:
        return Gateway(self.story.stage.data, principal, FINANCE)


def _answer(person: Gateway, key: str, asked: Json) -> Reply:
    """The answer to an approval of exactly what was shown, be it a refusal."""
    verdict = {"decision": "approve", "action_digest": asked["action_digest"], "reason": WHY}
    return reply_to(lambda: person.post(f"{_request_path(key, asked['request_id'])}/decision", verdict))


def _request_path(key: str, request: str) -> str:
    return f"{job_path(key)}/requests/{request}"


def _tools(events: list[Json]) -> list[str]:
    return [str(event["data"].get("tool")) for event in events if event["type"] == "tool.started"]


def _tally(reply: Reply) -> str:
    recorded = reply.json
    return f"{recorded.get('votes')} of {recorded.get('quorum')} votes, {recorded.get('state')}"
