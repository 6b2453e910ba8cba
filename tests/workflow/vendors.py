"""What a vendor does who answers later: its word in the ledger of the stub, and the hint that the gateway sends."""

from tests.workflow.hands import blob
from tests.workflow.jobs import Job
from workflows.contract.steps import CallbackHint, CallbackOutput, Hint


async def call_back(job: Job, step: int, call: int, *, ok: bool = True, hint: bool = True) -> None:
    """The answer to call `call` of model step `step`."""
    answer = CallbackOutput(outcome="ok" if ok else "error", result_ref=blob(f"answer {step}.{call}"))
    job.hands.callbacks[step, call] = answer
    if hint:
        await hint_callback(job, step, call)


async def hint_callback(job: Job, step: int, call: int) -> None:
    await job.handle.signal(Hint.CALLBACK, CallbackHint(step=step, call=call))
