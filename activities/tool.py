"""The `tool` activity: one call through the call gateway."""

from temporalio import activity

from gateway.calls.gateway import CallGateway
from workflows.contract.steps import Activity, ToolInput, ToolOutput


class ToolActivity:
    def __init__(self, calls: CallGateway) -> None:
        self._calls = calls

    @activity.defn(name=Activity.TOOL)
    async def tool(self, asked: ToolInput) -> ToolOutput:
        return await self._calls.call(asked)
