"""The example as the demo plays it: support_refund with one change that is shown, and a submission of it.

The example on disk asks one person. The demo publishes it as a version of its own that asks two distinct ones.
"""

import time
from collections.abc import Callable, Mapping
from importlib.resources import as_file, files
from types import MappingProxyType

from gateway.cli.client import Gateway, Json, Reply, job_path
from gateway.cli.operators import bundle_files, read_deployment

PLUGIN, VERSION = "support-refund", "1.1.0"
READ_TOOL, REFUND_TOOL = "invoices.get", "refunds.create"
SOON_S = 20.0
CHANGES: Mapping[str, str] = MappingProxyType({'version: "1.0.0"': f'version: "{VERSION}"', "quorum: 1": "quorum: 2"})
"""Text of plugin.yaml and what stands there in the demo's version."""


def load_example() -> tuple[dict[str, str], Json]:
    """The bundle's files, changed, and the deployment. Raises ValueError where there is not one place to change."""
    with as_file(files("examples.support_refund")) as folder:
        bundle, deployment = bundle_files(folder), read_deployment(folder / "deployment.yaml")
    for before, after in CHANGES.items():
        if bundle["plugin.yaml"].count(before) != 1:
            raise ValueError(f"plugin.yaml has not exactly one {before}")
        bundle["plugin.yaml"] = bundle["plugin.yaml"].replace(before, after)
    return bundle, deployment


def submission(invoice: str) -> Json:
    return {"plugin": PLUGIN, "input": {"invoice": invoice}}


def post_job(gateway: Gateway, key: str, invoice: str, *, mode: str = "live") -> Reply:
    return gateway.post("/v1/jobs", {**submission(invoice), "mode": mode}, {"Idempotency-Key": key})


def job_once(gateway: Gateway, key: str, settled: Callable[[Json], bool]) -> Json:
    """The job as it reads once that is so; after 20 s as it is then, for the proof to judge."""
    ends = time.monotonic() + SOON_S
    while True:
        view = gateway.get(job_path(key)).json
        if settled(view) or time.monotonic() > ends:
            return view
        time.sleep(0.05)
