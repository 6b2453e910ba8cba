"""The `scripted:` model: one turn of a script as a model's answer, a pure function of turn, attempt, input and results.

It fails as the real model step fails, with a typed StepError, so that retries, budgets and gates can be shown offline.
It waits for nothing: `delay_seconds` is for the caller to keep.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import JsonValue

from gateway.expressions import EvaluationFailed, compile_text
from gateway.script import Script, ScriptEntry, ScriptFail, ScriptUsage
from workflows.contract.errors import StepCode, StepError

MAX_ANSWER = 1024 * 1024
"""Characters that the expressions of one turn may make."""


@dataclass(frozen=True, slots=True)
class ScriptedReply:
    """An answer. No calls: `final` ends the job. `turn_used` is the entry that spoke, counted from 1."""

    turn_used: int
    say: str
    calls: tuple[tuple[str, dict[str, JsonValue]], ...]
    final: JsonValue
    usage: ScriptUsage
    delay_seconds: float


def play(
    script: Script, turn: int, *, input: JsonValue, results: Mapping[str, JsonValue], attempt: int
) -> ScriptedReply:
    """The answer to `turn`; `turn` and `attempt` count from 1, as templates see them.

    `results` holds the last result by tool name; a tool without one is undefined. An entry whose calls are all off by
    `when`, or that has nothing to answer, passes the turn to the next entry; past the last one the job ends with `{}`.
    Raises StepError: RATE_LIMITED or UNAVAILABLE or REJECTED as a `fail` says, REJECTED where a text has no value.
    """
    names = _Names({"input": input, "results": dict(results), "turn": turn, "attempt": attempt})
    last = len(script.entries)
    for number in range(min(turn, last), last + 1):
        entry = script.entries[number - 1]
        if entry.fail is not None and attempt <= entry.fail.times:
            raise _failure(entry.fail)
        try:
            reply = _answer(entry, number, names)
        except EvaluationFailed as failed:
            raise StepError(StepCode.REJECTED, f"Entry {number} of the script: {failed}.") from None
        if reply is not None:
            return reply
    return ScriptedReply(last, "", (), {}, script.entries[-1].usage, script.entries[-1].delay_seconds)


class _Names:
    """The names that templates see, and how much text they may still make of them."""

    def __init__(self, names: Mapping[str, JsonValue]) -> None:
        self._names = names
        self._left = MAX_ANSWER

    def value(self, template: str) -> JsonValue:
        value = compile_text(template).evaluate(self._names)
        self._left -= len(json.dumps(value))
        if self._left < 0:
            raise EvaluationFailed("the answer is too long")
        return value

    def text(self, template: str) -> str:
        value = self.value(template)
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

    def truth(self, condition: str | bool) -> bool:
        """A text is no condition: "false" would be true."""
        value = self.value(condition) if isinstance(condition, str) else condition
        if isinstance(value, str):
            raise EvaluationFailed("a condition is a text")
        return bool(value)

    def filled(self, value: JsonValue) -> JsonValue:
        if isinstance(value, str):
            return self.value(value)
        if isinstance(value, list):
            return [self.filled(element) for element in value]
        if isinstance(value, dict):
            return {name: self.filled(member) for name, member in value.items()}
        return value


def _answer(entry: ScriptEntry, number: int, names: _Names) -> ScriptedReply | None:
    on = [call for call in entry.calls if names.truth(call.when)]
    if not on and (entry.calls or (not entry.ends and entry.say is None)):
        return None
    said = "" if entry.say is None else names.text(entry.say)
    return ScriptedReply(
        turn_used=number,
        say=said,
        calls=tuple((call.tool, {name: names.filled(arg) for name, arg in call.args.items()}) for call in on),
        final=None if on else names.filled(entry.final) if entry.ends else said,
        usage=entry.usage,
        delay_seconds=entry.delay_seconds,
    )


def _failure(fail: ScriptFail) -> StepError:
    if fail.status == 429:
        return StepError(StepCode.RATE_LIMITED, "The scripted model answered 429.")
    code = StepCode.UNAVAILABLE if fail.status >= 500 or fail.status == 408 else StepCode.REJECTED
    return StepError(code, f"The scripted model answered {fail.status}.")
