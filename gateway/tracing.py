"""The trace context that a start or a signal carries: the caller's own span, without a span for the call itself.

The SDK's TracingInterceptor, which the worker uses, reads what is written here. Its client half would make a span for
each call, which admission can not afford (docs/bench.md).
"""

from collections.abc import Mapping
from typing import Any

from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from temporalio.api.common.v1 import Payload
from temporalio.client import Interceptor, OutboundInterceptor, SignalWorkflowInput, StartWorkflowInput, WorkflowHandle
from temporalio.converter import PayloadConverter

HEADER = "_tracer-data"
"""The name that `temporalio.contrib.opentelemetry.TracingInterceptor` gives its header."""
_PROPAGATOR = TraceContextTextMapPropagator()


class TraceContext(Interceptor):
    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:
        return _Carrying(next)


class _Carrying(OutboundInterceptor):
    async def start_workflow(self, input: StartWorkflowInput) -> WorkflowHandle[Any, Any]:
        input.headers = _with_context(input.headers)
        return await super().start_workflow(input)

    async def signal_workflow(self, input: SignalWorkflowInput) -> None:
        input.headers = _with_context(input.headers)
        await super().signal_workflow(input)


def _with_context(headers: Mapping[str, Payload]) -> Mapping[str, Payload]:
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier)
    if not carrier:
        return headers
    return {**headers, HEADER: PayloadConverter.default.to_payloads([carrier])[0]}
