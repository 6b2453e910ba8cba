"""The example as the demo plays it: support_refund with one change that is shown, and a submission of it.

The example on disk asks one person. The demo publishes it as a version of its own that asks two distinct ones.
"""

from collections.abc import Mapping
from importlib.resources import as_file, files
from types import MappingProxyType

from gateway.cli.client import Gateway, Json, Reply
from gateway.cli.operators import bundle_files, read_deployment

PLUGIN, VERSION = "support-refund", "1.1.0"
REFUND_TOOL = "refunds.create"
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
