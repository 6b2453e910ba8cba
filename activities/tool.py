"""The `tool` and `reconcile` activities: one call through the call gateway, and what came of one that was sent."""

from temporalio import activity

from gateway.calls.gateway import CallGateway
from gateway.calls.reconciling import Reconciling
from workflows.contract.steps import Activity, ReconcileInput, ReconcileOutput, ToolInput, ToolOutput


class ToolActivity:
    def __init__(self, calls: CallGateway, reconciling: Reconciling) -> None:
        self._calls = calls
        self._reconciling = reconciling

    @activity.defn(name=Activity.TOOL)
    async def tool(self, asked: ToolInput) -> ToolOutput:
        return await self._calls.call(asked)

    @activity.defn(name=Activity.RECONCILE)
    async def reconcile(self, asked: ReconcileInput) -> ReconcileOutput:
        return await self._reconciling.find_out(asked)
