"""The engine's own record of the demo's jobs, read where a person reads it: behind the Temporal UI.

States and kinds of events only, over HTTP. It changes nothing, and asks neither Jobgate's API nor a worker.
"""

from dataclasses import dataclass

import httpx2

from gateway.cli.client import Json
from gateway.settings import DevFile
from workflows.contract.steps import Activity

DEMO = "demo"
"""The workspace that a development stack seeds."""
SCHEDULED = "EVENT_TYPE_ACTIVITY_TASK_SCHEDULED"
WITHIN_S = 10.0


@dataclass(frozen=True)
class Lookout:
    running: DevFile

    def page(self, job: str) -> str:
        """The job's page in the Temporal UI."""
        return f"{self.running.temporal_ui_url}/{self._path(job)}"

    def state(self, job: str) -> str | None:
        """As in `completed`; None where the engine knows no such workflow."""
        answer = self._get(self._path(job))
        if answer is None:
            return None
        return str(answer["workflowExecutionInfo"]["status"]).rpartition("_")[2].lower()

    def events(self, job: str) -> list[Json]:
        """Its history, in order; empty where there is no such workflow."""
        found: list[Json] = []
        page = ""
        while True:
            answer = self._get(f"{self._path(job)}/history", {"nextPageToken": page}) or {}
            found += answer.get("history", {}).get("events", [])
            if not (page := str(answer.get("nextPageToken") or "")):
                return found

    def activities(self, *jobs: str) -> list[str]:
        """The kinds of the activities that these histories hold: everything that was handed to a worker's hands."""
        return [
            str(event["activityTaskScheduledEventAttributes"]["activityType"]["name"])
            for job in jobs
            for event in self.events(job)
            if event["eventType"] == SCHEDULED
        ]

    def calls(self, *jobs: str) -> list[str]:
        """Those of them that call a model or a tool. The others only read Jobgate's own ledger."""
        return [kind for kind in self.activities(*jobs) if kind in (Activity.MODEL, Activity.TOOL)]

    def _path(self, job: str) -> str:
        return f"namespaces/{self.running.namespace}/workflows/{DEMO}.{job}"

    def _get(self, path: str, params: dict[str, str] | None = None) -> Json | None:
        url = f"{self.running.temporal_ui_url}/api/v1/{path}"
        answer = httpx2.get(url, params=params, timeout=WITHIN_S, trust_env=False)
        return None if answer.status_code == 404 else answer.raise_for_status().json()
