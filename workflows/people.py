"""Requests to people: opened, waited for, closed. A signal is only a hint; the ruling is read from the ledger.

Silence is never yes: expiry is written in the ledger by compare-and-set, so that a decision and the expiry can not
both stand. Hints that arrive early are kept; hints that name nothing open are refused with an event, 50 at most.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta

from temporalio import workflow
from temporalio.common import RawValue

from workflows.contract.events import EventType as E
from workflows.contract.events import timestamp
from workflows.contract.ids import Digest, EffectId, RequestId, request_id
from workflows.contract.job import ApprovalRule, JobStart, OpenRequest, RequestKind
from workflows.contract.steps import CallbackHint, DecisionHint, DecisionInput, Hint, PlannedCall, Ruling
from workflows.journal import Journal
from workflows.policy.asking import CLOSED, SETTLED_AS, WANTED, renumbered, warning_time
from workflows.steps import Steps, uninterrupted

TITLE_CHARS = 200
MAX_ASKS = 3  # how often the model may propose the very same call to people before it is refused without asking
ASKED_KEPT = 1_000  # calls whose count is kept, those proposed last: a job that asks for ever stays small
MAX_DECISION_REFUSED = 50
LAST_READ = timedelta(seconds=3)  # in which the ledger closes what a job that ends leaves open
MAX_INBOX = 1_000  # hints kept; who sends more of them by hand has them forgotten


class People:
    """Owns the inbox of hints and the counts that bound asking; the requests themselves are in the journal's view."""

    def __init__(
        self,
        journal: Journal,
        steps: Steps,
        start: JobStart,
        *,
        opened: int,
        refused: int,
        asked: Mapping[str, int],
        inbox: Sequence[str],
    ) -> None:
        self._journal = journal
        self._steps = steps
        self._start = start
        self.opened = opened
        self.refused = refused
        self.asked = dict(asked)
        self.inbox = set(inbox)
        self._anew: dict[RequestId, OpenRequest] = {}

    def receive(self, name: str, args: Sequence[RawValue]) -> None:
        """Every signal arrives here on raw values: a wrong name, type or arity is an event, never a stuck task."""
        if name in (Hint.GATE, Hint.AUTHORITY) and not args:
            self.inbox.add(name)
            return
        if name == Hint.CALLBACK and len(args) == 1:
            self._receive_callback(args[0])
            return
        if name != Hint.DECISION or len(args) != 1:
            self._refuse("A signal was not understood.", "unknown_signal")
            return
        try:
            hint = DecisionHint.model_validate(workflow.payload_converter().from_payload(args[0].payload))
        except Exception:  # noqa: BLE001 - whatever a foreign payload raises, the job goes on
            self._refuse("A decision signal could not be read.", "malformed_signal")
            return
        if not any(r.request_id == hint.request_id and r.state == "pending" for r in self._journal.view.requests):
            self._refuse("A decision signal names no open request.", "no_open_request")
            return
        self.inbox.add(hint.request_id)

    def ask_anew(self, tag: str) -> None:
        """After an operator's reset no request from before it counts: what is still open is asked under another id. Ids
        that the other course of events may have used are passed over."""
        self.opened = renumbered(self.opened, tag)
        for old in [request for request in self._journal.view.requests if request.state == "pending"]:
            self.opened += 1
            anew = request_id(self.opened, old.action_digest)
            self._anew[old.request_id] = old.model_copy(update={"request_id": anew, "opened_at": workflow.now()})
            self._void(old)
            self._tell_opened(self._anew[old.request_id], WANTED[old.kind])

    def current(self, request: OpenRequest) -> OpenRequest:
        """The request that stands for this one now."""
        while (anew := self._anew.get(request.request_id)) is not None:
            request = anew
        return request

    def _tell_opened(self, request: OpenRequest, wanted: str) -> None:
        self._journal.emit(
            E.REQUEST_OPENED,
            f"Waiting for {wanted}: {request.title}",
            {
                "request_id": request.request_id,
                "kind": request.kind,
                "tool": request.tool,
                "call": request.call,
                "expires_at": timestamp(request.expires_at),
            },
            requests=self._journal.replace_request(request),
        )

    async def called_back(self, step: int, call: int, until: datetime) -> bool:
        """Wait for a vendor's answer; False when the time is up or nothing may go on. An early hint is kept."""
        wanted = callback_key(step, call)
        timeout = max((until - workflow.now()).total_seconds(), 0.001)
        try:
            await workflow.wait_condition(lambda: wanted in self.inbox or self._steps.over(), timeout=timeout)
        except TimeoutError:
            return False
        hinted = wanted in self.inbox
        self.inbox.discard(wanted)
        return hinted

    def _receive_callback(self, arg: RawValue) -> None:
        try:
            hint = CallbackHint.model_validate(workflow.payload_converter().from_payload(arg.payload))
        except Exception:  # noqa: BLE001 - whatever a foreign payload raises, the job goes on
            self._refuse("A callback signal could not be read.", "malformed_signal")
            return
        if len(self.inbox) < MAX_INBOX:
            self.inbox.add(callback_key(hint.step, hint.call))

    def open(self, call: PlannedCall) -> OpenRequest | None:
        """Ask for this call; None when the very same call was asked for too often."""
        if call.kind == "approval":
            times = self.asked.pop(call.action_digest, 0)
            self.asked[call.action_digest] = min(times + 1, MAX_ASKS)
            if times >= MAX_ASKS:
                return None
            if len(self.asked) > ASKED_KEPT:
                del self.asked[next(iter(self.asked))]
        rule, until = self._start.tools[call.tool].approval, self._start.deadline
        if rule.expires_in_seconds is not None:
            until = min(until, workflow.now() + timedelta(seconds=rule.expires_in_seconds))
        return self._ask(call, call.title, rule, until)

    def open_reconciliation(self, call: PlannedCall, effect: EffectId) -> OpenRequest:
        """Ask whether a write took effect: by whoever may decide on the tool, one of them, until the deadline."""
        title = f"Did {call.tool} take effect? {call.title or call.message}"[:TITLE_CHARS]
        rule = ApprovalRule(groups=self._start.tools[call.tool].approval.groups)
        return self._ask(call, title, rule, self._start.deadline, effect)

    def _ask(
        self, call: PlannedCall, title: str, rule: ApprovalRule, until: datetime, effect: EffectId | None = None
    ) -> OpenRequest:
        kind: RequestKind = call.kind if effect is None else "reconciliation"
        self.opened += 1
        request = OpenRequest(
            request_id=request_id(self.opened, Digest(call.action_digest)),
            kind=kind,
            title=title,
            tool=call.tool,
            call=call.call,
            effect_id=effect,
            action_digest=call.action_digest,
            args_ref=call.args_ref,
            approval=rule,
            opened_at=workflow.now(),
            expires_at=until,
        )
        self._tell_opened(request, WANTED[kind])
        return request

    async def ruling(self, request: OpenRequest, known: Callable[[], Awaitable[bool]] | None = None) -> Ruling:
        """What the ledger rules on this request, once it rules; raises StepError when the ledger can not be read.

        `known`: asked at a hint without a ruling; where it says yes, nothing is left to decide.
        """
        votes = 0
        warn_at: datetime | None = warning_time(request) if request.expires_at < self._start.deadline else None
        while True:
            if (current := self.current(request)) is not request:
                request, votes = current, 0
            expired = False
            hinted = await self._hinted(request, warn_at)
            if request.request_id in self._anew:
                continue
            if not hinted:
                if workflow.now() < request.expires_at:
                    warn_at = None
                    self._warn(request)
                    continue
                expired = True
                if warn_at is not None:
                    self._warn(request)  # the warning's own time passed with no worker to give it
            self.inbox.discard(request.request_id)
            ruling = await self._steps.read_decision(_question(request, close=expired))
            if request.request_id in self._anew:
                continue
            if ruling.verdict == "expired" or (ruling.verdict and ruling.action_digest == request.action_digest):
                self._close(request, ruling)
                return ruling
            if ruling.verdict is None and ruling.votes > votes:
                votes = ruling.votes
                self._journal.emit(
                    E.REQUEST_VOTED,
                    f"{votes} of {request.approval.quorum} approvals: {request.title}",
                    {"request_id": request.request_id, "votes": votes, "quorum": request.approval.quorum},
                )
            elif known is not None and await known():
                self._void(request)
                return Ruling(verdict=None)
            else:
                self._refuse("A decision signal came without a decision in the ledger.", "not_in_ledger")

    def _warn(self, request: OpenRequest) -> None:
        self._journal.emit(
            E.REQUEST_EXPIRING,
            f"Still waiting, and about to expire: {request.title}",
            {"request_id": request.request_id, "expires_at": timestamp(request.expires_at)},
        )

    async def hear_out(self) -> None:
        """The job ends: the ledger closes what is open, and a decision that was first is told, even without a hint."""
        asked = [request for request in self._journal.view.requests if request.state == "pending"]
        if not asked or not workflow.patched("decided-at-the-end"):
            return
        reads = [
            asyncio.create_task(self._steps.read_decision(_question(request, void=True), LAST_READ))
            for request in asked
        ]
        await uninterrupted(workflow.wait(reads))
        for request, read in zip(asked, reads, strict=True):
            if read.exception() is None and request in self._journal.view.requests:
                ruling = read.result()
                if ruling.verdict not in (None, "expired") and ruling.action_digest == request.action_digest:
                    self._close(request, ruling)

    def void_all(self) -> None:
        """Close what is still open, because the job ends."""
        for request in self._journal.view.requests:
            if request.state == "pending":
                self._void(request)

    def _void(self, request: OpenRequest) -> None:
        self._journal.emit(
            E.REQUEST_VOIDED,
            f"No decision is needed any more: {request.title}",
            {"request_id": request.request_id},
            requests=self._journal.replace_request(request.model_copy(update={"state": "voided"})),
        )

    async def _hinted(self, request: OpenRequest, warn_at: datetime | None) -> bool:
        """Wait for a hint; False at the warning or the expiry. The job's own deadline needs no timer here."""
        wanted: RequestId = request.request_id
        # A write's own task is shielded from a cancel, so what it waits for has to end by itself.
        shielded = request.kind == "reconciliation"
        until = warn_at or (request.expires_at if request.expires_at < self._start.deadline else None)
        timeout = None if until is None else max((until - workflow.now()).total_seconds(), 0.001)
        try:
            await workflow.wait_condition(
                lambda: wanted in self.inbox or wanted in self._anew or (shielded and self._steps.over()),
                timeout=timeout,
            )
        except TimeoutError:
            return False
        if shielded:
            self._steps.may_go_on()
        return True

    def _close(self, request: OpenRequest, ruling: Ruling) -> None:
        state = CLOSED[ruling.verdict or "expired"]
        closed = request.model_copy(
            update={"state": state, "decided_by": ruling.decided_by, "decided_at": ruling.decided_at}
        )
        requests = self._journal.replace_request(closed)
        if state == "expired":
            self._journal.emit(
                E.REQUEST_EXPIRED,
                f"Expired without a decision, so not run: {request.title}",
                {"request_id": request.request_id},
                requests=requests,
            )
            return
        said = f" ({SETTLED_AS[ruling.answer]})" if ruling.answer in SETTLED_AS else ""
        self._journal.emit(
            E.REQUEST_DECIDED,
            f"{state.capitalize()} by {', '.join(ruling.decided_by)}{said}: {request.title}",
            {"request_id": request.request_id, "decision": ruling.verdict, "decided_by": list(ruling.decided_by)},
            requests=requests,
        )

    def _refuse(self, message: str, reason: str) -> None:
        self.refused += 1
        if self.refused <= MAX_DECISION_REFUSED:
            self._journal.emit(E.DECISION_REFUSED, message, {"reason": reason})


def _question(it: OpenRequest, *, close: bool = False, void: bool = False) -> DecisionInput:
    known = DecisionInput(request_id=it.request_id, action_digest=it.action_digest, expires_at=it.expires_at)
    return known.model_copy(update={"close": close, "void": void, "shown": it if close or void else None})


def callback_key(step: int, call: int) -> str:
    """In the inbox; a request's id begins with `r`."""
    return f"callback-{step}-{call}"
