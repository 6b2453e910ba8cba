"""What this process counts, and its Prometheus text for `/metrics`.

Every name is here and begins with `jobgate_`; labels come from closed lists (route templates, codes), never from
input. Counters start at 0 so that a zero can be read. Figures that the ledger owns are read at each scrape.
"""

from collections.abc import Callable, Iterable

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest


class Metrics:
    """One per process. `add` on a counter takes attributes: `metrics.admissions.add(1, {"outcome": "accepted"})`."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        reader = PrometheusMetricReader(disable_target_info=True, scope_info_enabled=False, registry=self._registry)
        self._provider = MeterProvider(metric_readers=[reader], shutdown_on_exit=False)
        self._meter = self._provider.get_meter("jobgate")
        counter = self._meter.create_counter
        self.admissions = counter("jobgate_admissions_total", description="Submissions by outcome.")
        self.http_requests = counter("jobgate_http_requests_total", description="Requests by method, route and status.")
        self.http_seconds = self._meter.create_histogram(
            "jobgate_http_request_seconds",
            description="Time to answer by route; streams are not counted.",
            explicit_bucket_boundaries_advisory=[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30],
        )
        self.stream_readers = self._meter.create_up_down_counter(
            "jobgate_stream_readers", description="Event streams open now."
        )
        self.watchers = self._meter.create_up_down_counter(
            "jobgate_upstream_watchers", description="Jobs watched in the engine now."
        )
        self.refused = counter(
            "jobgate_requests_refused_total", description="Requests refused at the door, by kind and why."
        )
        self.steps = counter("jobgate_steps_total", description="Attempts at steps by kind and outcome.")
        self.permits = counter("jobgate_permits_total", description="Permits asked for by outcome.")
        self.decisions = counter("jobgate_decisions_total", description="Decisions by verdict.")
        self.keys_taken_outside = counter(
            "jobgate_keys_taken_outside_total", description="Keys found taken by a workflow that Jobgate did not start."
        )
        self.writes_after_cancel = counter(
            "jobgate_write_after_cancel_total",
            description="Writes started after the answer to cancel that it did not name.",
        )
        self.side_effects = counter(
            "jobgate_preview_side_effects_total",
            description="What previews and simulations tried to change, by flag; it was refused.",
        )
        self._sent_after_stop = 0
        self.keys_taken_outside.add(0)
        self.writes_after_cancel.add(0)
        self.side_effects.add(0)

    def watch_places(self, figures: Callable[[], Iterable[tuple[str, int, int]]]) -> None:
        """Asked at each scrape: of each kind of request, how many are at work and how many wait."""

        def at_work(_options: CallbackOptions) -> Iterable[Observation]:
            return [Observation(taken, {"kind": kind}) for kind, taken, _ in figures()]

        def waiting(_options: CallbackOptions) -> Iterable[Observation]:
            return [Observation(waits, {"kind": kind}) for kind, _, waits in figures()]

        gauge = self._meter.create_observable_gauge
        gauge("jobgate_requests_at_work", [at_work], description="Requests that have a place, by kind.")
        gauge("jobgate_requests_waiting", [waiting], description="Requests that wait for a place, by kind.")

    def sent_after_stop(self, in_ledger: int) -> None:
        """What the ledger shows of all workers, so that the API's figure speaks for the system."""
        self.writes_after_cancel.add(max(in_ledger - self._sent_after_stop, 0))
        self._sent_after_stop = max(in_ledger, self._sent_after_stop)

    def render(self) -> tuple[bytes, str]:
        """The exposition text and its content type."""
        return generate_latest(self._registry), CONTENT_TYPE_LATEST

    def close(self) -> None:
        self._provider.shutdown()
