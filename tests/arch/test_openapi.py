"""The committed OpenAPI document is the one that is served. Write it anew: `python -m tests.arch.test_openapi`."""

import json
from pathlib import Path
from typing import Any

from gateway.app import create_app
from gateway.settings import load_settings
from gateway.telemetry import start_telemetry

COMMITTED = Path(__file__).parents[2] / "docs" / "openapi.json"


def served() -> dict[str, Any]:
    settings = load_settings()
    telemetry = start_telemetry("api", settings)
    try:
        return create_app(settings, telemetry).openapi()
    finally:
        telemetry.close()


def test_the_committed_document_is_the_served_one() -> None:
    assert json.loads(COMMITTED.read_text(encoding="utf-8")) == json.loads(json.dumps(served()))


def test_every_operation_has_an_id_and_says_its_problems() -> None:
    paths: dict[str, dict[str, dict[str, Any]]] = served()["paths"]
    operations = [operation for methods in paths.values() for operation in methods.values()]
    assert len({operation["operationId"] for operation in operations}) == len(operations) > 15
    public = {"livez", "readyz", "answerCallback", "downloadArtifact"}
    for operation in operations:
        if operation["operationId"] not in public:
            assert "401" in operation["responses"], operation["operationId"]
        if operation["operationId"] not in public:
            assert "403" in operation["responses"], operation["operationId"]


if __name__ == "__main__":
    COMMITTED.write_text(json.dumps(served(), indent=1, ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8")
