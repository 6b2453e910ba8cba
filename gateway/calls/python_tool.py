"""Tools of kind `python`: a callable that the worker has installed (entry points of the group `jobgate.tools`).

`function(arguments, context)` is given JSON and returns JSON; a plain function runs in a thread of its own. Such code
sees the worker's environment, so the job's principal needs a grant that names `tools:python`, judged when the call is
planned and again right before it runs. What it raises is told by a fixed sentence: its text stays here.
What it logs is scrubbed as its result is; what it prints is not.
"""

import asyncio
import contextlib
import copy
import inspect
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import entry_points
from typing import Any

from gateway.allowlist import CredentialPolicy
from gateway.authority import may_run_python
from gateway.calls.attempts import now
from gateway.calls.egress import BeforeBytes
from gateway.calls.http_tool import ToolOutcome
from gateway.calls.kinds import Exchange, Prepared, Proposed, Stamp
from gateway.calls.outbound import ReplyLost
from gateway.calls.values import outcome_of_value
from gateway.credentials import Scrubber, Secret, resolve_credential
from gateway.ledger.engine import Ledger
from gateway.ledger.grants import grants_of
from gateway.ledger.receipts import ReceiptRow
from gateway.logtexts import scrubbed
from gateway.telemetry import log
from workflows.contract.errors import StepCode, StepError
from workflows.contract.ids import EffectId, JobId
from workflows.contract.job import EffectClass

GROUP = "jobgate.tools"
UNGRANTED = "No valid grant of the job's principal names tools:python for this plugin."
UNKNOWN = "There is no Python tool of this name."
BROKEN = "This Python tool can not be loaded."
RAISED = "The Python tool raised an error."
TIMED_OUT = "The Python tool did not end in time."


@dataclass(frozen=True, slots=True)
class ToolContext:
    """What a Python tool is told beside its arguments. A read has neither effect id, key nor epoch."""

    job: JobId
    deadline: datetime
    effect_id: EffectId | None
    idempotency_key: str | None
    epoch: int | None


class PythonCalls:
    """One per process."""

    def __init__(self, ledger: Ledger, credentials: CredentialPolicy) -> None:
        self._ledger = ledger
        self._credentials = credentials

    async def judge(self, proposed: Proposed) -> EffectClass:
        """Raises StepError `authority_revoked` or `rejected`."""
        await self._need_grant(proposed.receipt)
        _load(proposed.tool.python)
        return proposed.tool.effect

    async def ready(self, prepared: Prepared) -> Exchange:
        await self._need_grant(prepared.receipt)
        function = _load(prepared.tool.python)

        async def exchange(stamp: Stamp, before_bytes: BeforeBytes | None) -> ToolOutcome:
            context = ToolContext(
                job=prepared.receipt.job_id,
                deadline=prepared.receipt.deadline_at,
                effect_id=stamp.effect_id,
                idempotency_key=stamp.effect_id,
                epoch=stamp.epoch,
            )
            scrubber = self._scrubber(prepared)
            await self._need_grant(prepared.receipt)
            if before_bytes is not None:
                await before_bytes()
            return await _run(prepared, function, context, scrubber)

        return exchange

    def _scrubber(self, prepared: Prepared) -> Scrubber:
        """Finds the credentials of the deployment's connections, its model's too: such code could have read them."""
        workspace, secrets = prepared.receipt.workspace, list[Secret]()
        for connection in (*prepared.connections.values(), prepared.model_connection):
            if connection is not None and connection.credential is not None:
                ref, url = connection.credential.ref, connection.base_url
                with contextlib.suppress(StepError):  # what has no value here was not read here
                    secrets.append(resolve_credential(self._credentials, ref, workspace=workspace, base_url=url))
        return Scrubber(secrets)

    async def _need_grant(self, receipt: ReceiptRow) -> None:
        at = now()
        grants = await self._ledger.read(lambda conn: grants_of(conn, receipt.workspace, receipt.principal, at))
        if not may_run_python(grants, receipt.plugin, at):
            raise StepError(StepCode.AUTHORITY_REVOKED, UNGRANTED)


async def _run(
    prepared: Prepared, function: Callable[..., Any], context: ToolContext, scrubber: Scrubber
) -> ToolOutcome:
    """Raises ReplyLost where it is not known what the function did."""
    effect, arguments, time_s = prepared.effect, copy.deepcopy(dict(prepared.args)), prepared.time_s
    try:
        async with asyncio.timeout(time_s):
            value = await asyncio.wrap_future(_in_thread(function, arguments, context, time_s, scrubber))
    except TimeoutError:
        reason = TIMED_OUT
    except Exception as error:  # noqa: BLE001  # other people's code may raise anything, and say anything
        reason = RAISED
        log.warning("python tool raised", tool=prepared.tool.name, type=type(error).__name__)
    else:
        return outcome_of_value(effect, value, scrubber)
    if effect != "read" or reason is TIMED_OUT:
        raise ReplyLost(reason)
    return outcome_of_value(effect, {"error": reason}, scrubber, failed=True, message=reason)


def _in_thread(
    function: Callable[..., Any], arguments: dict[str, Any], context: ToolContext, time_s: float, scrubber: Scrubber
) -> Future[Any]:
    """A daemon thread of its own, with a loop of its own for a coroutine: a call that never ends, or never awaits,
    holds up neither others nor the end of the process."""
    ended: Future[Any] = Future()

    async def limited(value: Any) -> Any:
        async with asyncio.timeout(time_s):
            return await value

    def run() -> None:
        value, failure = None, None
        try:
            with scrubbed(scrubber.scrub_text):
                value = function(arguments, context)
                if inspect.isawaitable(value):
                    value = asyncio.run(limited(value))
        except Exception as error:  # noqa: BLE001  # told by the type alone
            failure = error
        except BaseException as error:  # noqa: BLE001  # SystemExit and the like end this thread, not the worker
            failure = RuntimeError(type(error).__name__)
        if not ended.set_running_or_notify_cancel():
            return  # nobody waits any more
        if failure is None:
            ended.set_result(value)
        else:
            ended.set_exception(failure)

    threading.Thread(target=run, name="python-tool", daemon=True).start()
    return ended


def installed_tools() -> tuple[str, ...]:
    """The names that this process could run; none is imported for it."""
    return tuple(sorted({found.name for found in entry_points(group=GROUP)}))


def _load(name: str | None) -> Callable[..., Any]:
    """Raises StepError `rejected` with a sentence for the model."""
    found = next(iter(entry_points(group=GROUP, name=name or "")), None)
    if found is None:
        raise StepError(StepCode.REJECTED, UNKNOWN)
    try:
        function: Any = found.load()
    except Exception as error:  # noqa: BLE001  # importing other people's code may raise anything
        log.error("python tool can not be loaded", entry_point=found.name, type=type(error).__name__)
        function = None
    if not callable(function):
        raise StepError(StepCode.REJECTED, BROKEN)
    return function
