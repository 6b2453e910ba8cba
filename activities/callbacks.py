"""The answer to a call whose tool answers later, read from the ledger: the loop believes this and no signal.

Reading an answer takes it, so that nobody reminds the job of it again; with `close` the wait is over, and a write
without an answer is unknown from then on. An answer that was first stands.
"""

from sqlalchemy import Connection
from temporalio import activity

from gateway.calls.attempts import current_attempt
from gateway.calls.standing import NO_RECEIPT
from gateway.ledger.callbacks import CallbackRow, OfCall, close_call, take_answer
from gateway.ledger.engine import Ledger
from gateway.ledger.receipts import find_receipt
from workflows.contract.steps import Activity, CallbackInput, CallbackOutput


class CallbackActivity:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    @activity.defn(name=Activity.READ_CALLBACK)
    async def read_callback(self, asked: CallbackInput) -> CallbackOutput:
        attempt = current_attempt()
        of = OfCall(attempt.workspace, attempt.job_id, asked.step, asked.call)

        def read(conn: Connection) -> CallbackRow | None:
            if find_receipt(conn, attempt.workspace, attempt.job_id) is None:
                raise NO_RECEIPT.error()
            return (close_call if asked.close else take_answer)(conn, of, attempt.clock.now())

        answer = await self._ledger.write(read)
        if answer is None:
            return CallbackOutput(outcome=None)
        return CallbackOutput(outcome=answer.outcome, result_ref=answer.result_ref)
