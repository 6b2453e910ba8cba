"""Workers in which one check is off; `mutants.py` names them and the invariant that each of them breaks."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

LATER = timedelta(seconds=8)


def deaf() -> None:
    """Does not hear a cancel."""
    from tests.recovery.counting_worker import go_deaf

    go_deaf()


def blind() -> None:
    """Does not see that authority is gone."""
    from gateway.calls import permits, standing
    from gateway.ledger.authorities import find_authority
    from gateway.ledger.receipts import find_receipt
    from workflows.loop import Loop

    seen: Any = standing.examine

    def examine(conn: Any, attempt: Any, now: Any, **how: Any) -> Any:
        found = seen(conn, attempt, now, **how)
        if isinstance(found, standing.Denied) and found.code is standing.StepCode.AUTHORITY_REVOKED:
            row = find_receipt(conn, attempt.workspace, attempt.job_id)
            authority = find_authority(conn, attempt.workspace, attempt.job_id)
            assert row is not None
            assert authority is not None
            return standing.Standing(row, authority)
        return found

    async def guard(self: Any) -> None:
        from temporalio import workflow

        await workflow.wait_condition(lambda: False)

    standing.examine = permits.examine = examine
    Loop._guard = guard  # pyright: ignore[reportPrivateUsage]


def undecided() -> None:
    """Takes every verdict for an approval."""
    from gateway.calls import permits, standing
    from workflows.people import People

    ruled: Any = People.ruling

    async def ruling(self: Any, request: Any, *what: Any, **how: Any) -> Any:
        told = await ruled(self, request, *what, **how)
        return told.model_copy(update={"verdict": "approve"}) if request.kind == "approval" else told

    def decided(*_: Any) -> None:
        return None

    standing.decided = permits.decided = decided
    People.ruling = ruling


def repeats() -> None:
    """Sends a write again whose reply was lost."""
    from sqlalchemy import bindparam, update

    from gateway.calls.egress import ReplyLost
    from gateway.calls.writes import StepCode, StepError, Writes
    from gateway.ledger import effects

    known: Any = Writes._known  # pyright: ignore[reportPrivateUsage]
    table = effects.effects

    async def forget(self: Any, attempt: Any, row: Any) -> Any:
        return None if row.state in ("sent", "unknown") else await known(self, attempt, row)

    async def send(self: Any, attempt: Any, intent: Any, epoch: int, send: Any, sending: Any, until: float) -> Any:
        async def again(epoch: int, before: Any) -> Any:
            try:
                return await send(epoch, before)
            except ReplyLost:
                raise StepError(StepCode.CONNECT_REFUSED, "It is taken for refused.") from None

        return await sent(self, attempt, intent, epoch, again, sending, until)

    sent: Any = Writes._send  # pyright: ignore[reportPrivateUsage]
    Writes._known, Writes._send = forget, send  # pyright: ignore[reportPrivateUsage]
    effects._AGAIN = (  # pyright: ignore[reportPrivateUsage]
        update(table)
        .where(table.c.effect_id == bindparam("of_effect"), table.c.epoch == bindparam("of_epoch"))
        .values(state="sent", epoch=table.c.epoch + 1, sent_at=bindparam("at"), attempt=bindparam("by_attempt"))
        .returning(table.c.effect_id)
    )


def renames() -> None:
    """Gives each attempt an effect id of its own."""
    from gateway.calls.gateway import CallGateway
    from workflows.contract.ids import EffectId

    plain: Any = CallGateway._intent  # pyright: ignore[reportPrivateUsage]

    def intent(self: Any, prepared: Any, asked: Any) -> Any:
        told = plain(self, prepared, asked)
        return replace(told, effect_id=EffectId(f"{told.effect_id[:-1]}{asked.attempt}"))

    CallGateway._intent = intent  # pyright: ignore[reportPrivateUsage]


def ebbs() -> None:
    """Tells the tool the first epoch, whichever it is."""
    from gateway.calls.gateway import CallGateway

    plain: Any = CallGateway._exchange  # pyright: ignore[reportPrivateUsage]

    async def exchange(self: Any, prepared: Any, stamp: Any, *what: Any, **how: Any) -> Any:
        first = stamp if prepared.effect == "read" else replace(stamp, epoch=1)
        return await plain(self, prepared, first, *what, **how)

    CallGateway._exchange = exchange  # pyright: ignore[reportPrivateUsage]


def late() -> None:
    """Takes every deadline for one that is eight seconds later."""
    from gateway.calls import standing
    from workflows.loop import Loop

    find: Any = standing.find_receipt
    made: Any = Loop.__init__

    def find_receipt(*where: Any) -> Any:
        row = find(*where)
        return None if row is None else replace(row, deadline_at=row.deadline_at + LATER)

    def make(self: Any, start: Any) -> None:
        made(self, start.model_copy(update={"deadline": start.deadline + LATER}))

    standing.find_receipt = find_receipt
    Loop.__init__ = make


def hopeful() -> None:
    """Records a lost reply as a success."""
    from gateway.calls import writes

    writes.UNKNOWN = replace(writes.UNKNOWN, state="confirmed")


def skips() -> None:
    """Leaves a number out of a job's events."""
    from workflows.contract.events import EventType
    from workflows.journal import Journal

    plain: Any = Journal.emit

    def emit(self: Any, type: Any, *told: Any, **more: Any) -> Any:
        self.seq += type is EventType.TOOL_FINISHED
        return plain(self, type, *told, **more)

    Journal.emit = emit


def stuck() -> None:
    """Hears no decision."""
    from workflows.people import People

    async def hinted(self: Any, request: Any, warn_at: Any) -> bool:
        from temporalio import workflow

        await workflow.wait_condition(lambda: False)
        return True

    People._hinted = hinted  # pyright: ignore[reportPrivateUsage]
