"""Logs and traces of every process: JSON lines on stderr, W3C trace context, OTLP where it is configured.

One log entry is one line whatever its text holds. Of an exception a line says type, our code and where it was raised,
never its text: that may quote the other side. Libraries log through the same renderer, first line only. Spans leave
the process through `_Quiet`, which drops exception texts the same way. Metrics are in gateway/metrics.py.
"""

import json
import logging
import os
import sys
import threading
import traceback
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO, cast

import structlog
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    SimpleSpanProcessor,
    SpanExporter,
    SpanExportResult,
)
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from structlog.typing import EventDict, Processor, WrappedLogger
from temporalio.exceptions import ApplicationError

from gateway.logcounts import Warnings
from gateway.logstream import LogStream
from gateway.logtexts import fit_texts
from gateway.metrics import Metrics
from gateway.settings import Settings
from workflows.contract.errors import JobgateError

_OURS = ("workflows", "facade", "gateway", "activities", "examples")
_TRACE_CONTEXT = TraceContextTextMapPropagator()

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


def bind(**values: str | None) -> AbstractContextManager[None]:
    """Adds `request_id`, `job`, `principal` and the like to every log line of this context."""
    return structlog.contextvars.bound_contextvars(**{key: value for key, value in values.items() if value is not None})


def fault(error: BaseException) -> dict[str, str]:
    """What may be said of an exception: its type, our code, and the line of ours that it passed last."""
    said = {"type": type(error).__name__}
    if isinstance(error, JobgateError):
        said["code"] = error.code
    elif isinstance(error, ApplicationError) and error.type:
        said["code"] = error.type
    for frame, line in traceback.walk_tb(error.__traceback__):
        module = str(frame.f_globals.get("__name__"))
        if module.partition(".")[0] in _OURS:
            said["at"] = f"{module}:{line}"
    return said


def configure_logging(service: str, level: str = "info", stream: TextIO | None = None) -> Warnings:
    """Every log line of this process, ours and the libraries', as JSON on `stream` (stderr). Counts the loud ones."""
    warnings = Warnings()
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _name_service(service),
        _add_trace_id,
        _render_fault,
        fit_texts,
        warnings,
    ]
    out = cast(TextIO, LogStream(stream if stream is not None else sys.stderr))
    structlog.configure(
        processors=[*shared, structlog.processors.JSONRenderer(serializer=_one_line)],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file=out),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[_first_line, *shared],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(serializer=_one_line),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO if level == "debug" else logging.WARNING)
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access", "uvicorn.asgi"):
        logging.getLogger(name).handlers.clear()
        logging.getLogger(name).propagate = True
    logging.captureWarnings(capture=True)
    sys.excepthook = _log_crash
    threading.excepthook = lambda crash: _log_crash(crash.exc_type, crash.exc_value, crash.exc_traceback)
    return warnings


def _log_crash(kind: type[BaseException], error: BaseException | None, where: TracebackType | None) -> None:
    log.error("crashed", exc_info=error if error is not None else kind())


def _name_service(service: str) -> Processor:
    def name_service(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        event["service"] = service
        return event

    return name_service


def _add_trace_id(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    if current := trace_id():
        event["trace_id"] = current
    return event


def _render_fault(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    given = event.pop("exc_info", None)
    event.pop("stack_info", None)
    event.pop("exception", None)
    if given is True:
        given = sys.exc_info()[1]
    elif isinstance(given, tuple):
        given = given[1]  # pyright: ignore[reportUnknownVariableType]
    if isinstance(given, BaseException):
        event["error"] = fault(given)
    for key, value in event.items():
        if isinstance(value, BaseException):
            event[key] = fault(value)
    return event


def _first_line(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Libraries put tracebacks and the repr of exceptions behind the first line."""
    record = event["_record"]
    first, _, rest = str(event["event"]).partition("\n")
    if rest and first.startswith("Traceback"):
        first = "raised " + rest.rstrip().rpartition("\n")[2].partition(":")[0]
    event["event"] = first
    event["logger"] = record.name
    return event


def _one_line(event: EventDict, **_options: Any) -> str:
    return json.dumps(event, default=lambda value: f"<{type(value).__name__}>")


class _Quiet(SpanExporter):
    """Hands spans on without the texts of exceptions: their type alone is kept."""

    def __init__(self, inner: SpanExporter) -> None:
        self._inner = inner

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return self._inner.export([_without_texts(span) for span in spans])

    def shutdown(self) -> None:
        self._inner.shutdown()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        return self._inner.force_flush(timeout_millis)


class _JsonLines(SpanExporter):
    """Appends; several processes may share the file, each line is one write."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        for span in spans:
            self._file.write(span.to_json(indent=None).encode() + b"\n")
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        self._file.close()


def _without_texts(span: ReadableSpan) -> ReadableSpan:
    if span.status.description is None and not any(event.name == "exception" for event in span.events):
        return span
    kinds = [str((event.attributes or {}).get("exception.type")) for event in span.events if event.name == "exception"]
    return ReadableSpan(
        name=span.name,
        context=span.context,
        parent=span.parent,
        resource=span.resource,
        attributes={**(span.attributes or {}), **({"error.type": kinds[-1]} if kinds else {})},
        events=[event for event in span.events if event.name != "exception"],
        links=span.links,
        kind=span.kind,
        status=Status(span.status.status_code),
        start_time=span.start_time,
        end_time=span.end_time,
        instrumentation_scope=span.instrumentation_scope,
    )


@dataclass(frozen=True)
class Telemetry:
    """Handed to whoever opens spans or counts. `tracer` is what Temporal's `TracingInterceptor` takes."""

    provider: TracerProvider
    tracer: Tracer
    metrics: Metrics = field(default_factory=Metrics)
    warnings: Warnings = field(default_factory=Warnings)

    @contextmanager
    def span(
        self,
        name: str,
        *,
        parent: Context | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
        attributes: Mapping[str, str | int | bool] | None = None,
    ) -> Generator[Span]:
        with self.tracer.start_as_current_span(
            name,
            context=parent,
            kind=kind,
            attributes=attributes,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield span
            except BaseException as error:
                span.set_attribute("error.type", type(error).__name__)
                span.set_status(Status(StatusCode.ERROR))
                raise

    def close(self) -> None:
        """Sends what is still held; call it before the process leaves."""
        self.provider.shutdown()
        self.metrics.close()


def start_telemetry(service: str, settings: Settings) -> Telemetry:
    """Logging, traces and metrics of one process. Without an exporter trace ids still travel."""
    warnings = configure_logging(service, settings.log_level)
    provider = TracerProvider(resource=Resource.create({"service.name": f"jobgate-{service}"}), shutdown_on_exit=False)
    if settings.trace_file is not None:
        provider.add_span_processor(SimpleSpanProcessor(_Quiet(_JsonLines(settings.trace_file))))
    if os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") or os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"):
        exporter = _otlp_exporter()
        if exporter is None:
            log.warning("an OTLP endpoint is set but the extra is not installed: pip install 'jobgate[otlp]'")
        else:
            provider.add_span_processor(BatchSpanProcessor(_Quiet(exporter())))
    return Telemetry(provider=provider, tracer=provider.get_tracer("jobgate"), warnings=warnings)


def _otlp_exporter() -> Callable[[], SpanExporter] | None:
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError:
        return None
    return OTLPSpanExporter


def traceparent() -> str | None:
    """The current span as a W3C `traceparent` header; None outside any span."""
    carrier: dict[str, str] = {}
    _TRACE_CONTEXT.inject(carrier)
    return carrier.get("traceparent")


def remote_parent(header: str | None) -> Context:
    """The context that a caller's `traceparent` names; an empty one where it is missing or malformed."""
    return _TRACE_CONTEXT.extract({"traceparent": header} if header else {}, context=Context())


def trace_id() -> str | None:
    """32 hexadecimal digits, or None outside any span."""
    context = get_current_span().get_span_context()
    return f"{context.trace_id:032x}" if context.is_valid else None


def route_engine_logs() -> None:
    """Makes the SDK's core log through this process's renderer; call it before the first connection."""
    from temporalio.runtime import LogForwardingConfig, LoggingConfig, Runtime, TelemetryConfig, TelemetryFilter

    forwarding = LogForwardingConfig(
        logger=logging.getLogger("temporal.core"), append_log_fields_to_message=False, append_target_to_name=False
    )
    levels = TelemetryFilter(core_level="WARN", other_level="ERROR")
    Runtime.set_default(Runtime(telemetry=TelemetryConfig(logging=LoggingConfig(levels, forwarding))))
