"""The demo's canary: one held job that a packet lets run, what it proved, and the others that did not move.

The packet is proposed by one operator and approved by another; the job redeems it itself. Nothing here opens a gate.
"""

from dataclasses import dataclass

from gateway.cli import render
from gateway.cli.client import Json, job_path
from gateway.cli.climb import PUBLISHER, SECOND, TOLD_BEFORE, Ladder
from gateway.cli.example import READ_TOOL, REFUND_TOOL
from gateway.cli.proof import code_of, reply_to
from gateway.cli.watching import follow, live_line, show_event
from gateway.strictjson import digest_of

PAST = 12
"""Digits of a digest that a person compares."""


@dataclass
class Canary:
    ladder: Ladder

    def run(self) -> None:
        story, ladder = self.ladder.story, self.ladder
        canary, *others = ladder.checks
        others = [story.key, *others]
        story.chapter("A canary: a packet lets one of the five run, once, and only read")
        before = self._standing(others)
        packet = self._propose(canary)
        path = f"/v1/packets/{packet}"
        own = reply_to(lambda: ladder.operator.post(f"{path}/approval"))
        story.tell(f"{PUBLISHER}, its author, approves it: HTTP {own.status} {code_of(own)}", "yellow")
        approved = ladder.second.post(f"{path}/approval").json
        story.tell(f"{SECOND} approves it: {approved['state']}", "bold")
        story.expect("packet: approved by its author", [own.status, code_of(own)], [403, "self-approval"])
        self._watch(canary)
        self._read_proof(path, canary)
        self._compare(others, before)
        ladder.ready("after the canary", 6)
        again = reply_to(lambda: ladder.operator.delete(path))
        story.expect("packet: taken back after its one use", [again.status, code_of(again)], [409, "packet-spent"])

    def _propose(self, canary: str) -> str:
        story, operator = self.ladder.story, self.ladder.operator
        asked = {"job_id": canary, "allowed_tools": [REFUND_TOOL], "max_steps": 10, "expires_in_seconds": 600}
        writes = reply_to(lambda: operator.post("/v1/packets", asked))
        story.tell(f"a packet for {canary} that allows {REFUND_TOOL}: HTTP {writes.status} {code_of(writes)}", "yellow")
        story.expect("packet: with a tool that writes", [writes.status, code_of(writes)], [422, "input-invalid"])
        made = operator.post("/v1/packets", {**asked, "allowed_tools": [READ_TOOL]}).json
        story.tell(f"{PUBLISHER} proposes one that allows {READ_TOOL}, 10 steps, 10 minutes: {made['packet_id'][:15]}…")
        return str(made["packet_id"])

    def _watch(self, canary: str) -> None:
        story = self.ladder.story
        with live_line(story.voice, "watching") as line:
            for event in follow(self.ladder.app, story.quiet, canary):
                if event["type"] not in TOLD_BEFORE:
                    show_event(story.voice, event)
                line.update(str(event["message"]))

    def _read_proof(self, path: str, canary: str) -> None:
        story = self.ladder.story
        packet = self.ladder.operator.get(path).json
        proof = render.member(packet, "proof")
        tools: list[str] = proof.get("tools") or []
        read_back = render.member(proof, "read_back").get("result")
        result = self.ladder.app.get(f"{job_path(canary)}/result").json
        story.tell(
            f"the packet is {packet['state']}; its proof: {proof.get('status')}, called {', '.join(tools)}", "bold"
        )
        story.aside(f"result {str(proof.get('result_digest'))[: len('sha256:') + PAST]}…, which its app reads as:")
        story.aside(str(result.get("message")))
        found = [packet["state"], proof.get("status"), *tools]
        story.expect("canary: state, end, tools", found, ["redeemed", "succeeded", READ_TOOL])
        same = read_back == result and proof.get("result_digest") == digest_of(result)
        story.check("canary: the proof is of what its app reads", same, "same text and digest" if same else "another")
        calls = self.ladder.engine.calls(canary)
        story.check("canary: calls of a model or tool in its history", bool(calls), len(calls))

    def _compare(self, others: list[str], before: list[Json]) -> None:
        story = self.ladder.story
        after = self._standing(others)
        still = sum(one == other and other["last"] == "job.held" for one, other in zip(before, after, strict=True))
        story.tell(f"the other {len(others)}: {', '.join(sorted({view['status'] for view in after}))}")
        story.check("canary: other held jobs that did not move", still == len(others), f"{still} of {len(others)}")
        story.expect("canary: activities in the histories of the others", self.ladder.engine.activities(*others), [])
        story.expect("canary: refunds in the shop", story.paid, [])

    def _standing(self, jobs: list[str]) -> list[Json]:
        views = [self.ladder.app.get(job_path(job)).json for job in jobs]
        return [
            {"status": view["status"], "executed": view["executed"], "last": view["last_event"]["type"]}
            | {"seq": view["last_event"]["seq"]}
            for view in views
        ]
