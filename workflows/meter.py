"""Counts what a job spends, as it is spent, and says so once when a budget is nearly used up."""

from collections.abc import Callable, Iterable

from workflows.contract.errors import FailureCode, JobFailed
from workflows.contract.events import EventType
from workflows.contract.job import Limits
from workflows.contract.steps import ModelOutput
from workflows.journal import Journal
from workflows.policy import budget


class Meter:
    """`step` is the number of the step last started; `warned` names the budgets that were warned of."""

    def __init__(
        self, journal: Journal, limits: Limits, may_start: Callable[[], None], step: int, warned: Iterable[str]
    ) -> None:
        self._journal = journal
        self._limits = limits
        self._may_start = may_start
        self.step = step
        self.warned = set(warned)

    def allow_steps(self, at_most: int) -> None:
        """A narrower limit of steps than the job was admitted with."""
        steps = min(self._limits.max_steps, at_most)
        self._limits = self._limits.model_copy(update={"max_steps": steps})

    def spend_step(self) -> int:
        """Count a step before it starts and return its number; budget_exceeded, with nothing started, at the limit."""
        self._may_start()
        if (share := budget.spent(self._journal.view.usage, self._limits)) is not None:
            raise JobFailed(
                FailureCode.BUDGET_EXCEEDED, f"The budget of {share.limit} {share.budget} is used up ({share.used})."
            )
        self.step += 1
        self._journal.amend(usage=budget.add(self._journal.view.usage, steps=1))
        return self.step

    def spend_tokens(self, reply: ModelOutput) -> None:
        self._journal.amend(
            usage=budget.add(
                self._journal.view.usage,
                input_tokens=reply.input_tokens,
                output_tokens=reply.output_tokens,
                cost_usd=reply.cost_usd,
            )
        )

    def warn(self) -> None:
        """One warning event for each budget of which 80 % are used."""
        for share in budget.nearly_spent(self._journal.view.usage, self._limits):
            if share.budget not in self.warned:
                self.warned.add(share.budget)
                self._journal.emit(
                    EventType.BUDGET_WARNING,
                    f"{share.used} of {share.limit} {share.budget} are used.",
                    {"budget": share.budget, "used": str(share.used), "limit": str(share.limit)},
                )
