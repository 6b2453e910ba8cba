"""Every read there is, and secrets sent where none belongs; all answers are heard by an `Ear`.

The routes come from the OpenAPI document, so that a new one is met here without anybody thinking of it.
"""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from tests.recovery.needles import Ear
from tests.rig.client import Client, Json, fresh_key
from tests.rig.process import ROOT

MISPLACED = "canary-misplaced-55e0"
"""A secret that its owner sends where none belongs: in a path, a query, a body, a header."""
GIVES_OUT_BYTES = frozenset({"/v1/artifacts/{artifact_id}", "/v1/artifacts/{artifact_id}/content"})
"""An address, and what a job or a caller put behind it; heard in tests/http/test_artifacts.py."""
OPENAPI: Json = json.loads((ROOT / "docs" / "openapi.json").read_text())


def operations() -> Iterator[tuple[str, str]]:
    """Verb and path of every operation."""
    for path, verbs in OPENAPI["paths"].items():
        for verb in verbs:
            yield verb.upper(), path


def mistakes() -> list[tuple[int, str, str, dict[str, Any]]]:
    """Secrets where none belongs, each with the status of its refusal."""
    key, json_type = {"Idempotency-Key": fresh_key()}, {"Content-Type": "application/json"}
    body: dict[str, Any] = {"plugin": "p", "input": {}}
    return [
        (422, "POST", "/v1/jobs", {"json": {**body, MISPLACED: 1}, "headers": key}),
        (422, "POST", "/v1/jobs", {"content": f'{{"{MISPLACED}', "headers": {**key, **json_type}}),
        (415, "POST", "/v1/jobs", {"content": MISPLACED, "headers": {**key, "Content-Type": MISPLACED}}),
        (400, "POST", "/v1/jobs", {"json": body, "headers": {"Idempotency-Key": f"{MISPLACED} x"}}),
        (422, "GET", "/v1/jobs", {"params": {"token": MISPLACED}}),
        (404, "GET", f"/v1/jobs/{MISPLACED}", {}),
        (404, "GET", f"/{MISPLACED}", {}),
        (404, "GET", "/v1/jobs/x", {"params": {"after": "0"}, "headers": {"Prefer": MISPLACED}}),
        (200, "GET", "/livez", {"headers": {"X-Request-Id": f"{MISPLACED} !", "traceparent": MISPLACED}}),
        (401, "GET", "/v1/jobs", {"headers": {"Authorization": f"Bearer {MISPLACED}"}}),
        (401, "GET", "/v1/jobs", {"headers": {"Authorization": f"Basic {MISPLACED}"}}),
        (401, "GET", "/v1/jobs", {"headers": {"Authorization": f"Bearer jgk_0123456789ab_{MISPLACED}"}}),
    ]


async def make_mistakes(app: Client, operator: Client, ears: Sequence[Ear]) -> None:
    for status, method, path, options in mistakes():
        answer = await app.http.request(method, path, **options)
        assert answer.status_code == status, (method, path, answer.status_code)
    for verb, path in operations():
        if (verb, path) == ("POST", "/v1/artifacts"):
            continue  # keeps whatever bytes it is sent
        place = re.sub(r"{[^}]*}", MISPLACED, path)
        for who in (app, operator):
            sent: dict[str, Any] = {"params": {"q": MISPLACED}} if verb == "GET" else {"json": {MISPLACED: MISPLACED}}
            answer = await who.http.request(verb, place, headers={"Idempotency-Key": fresh_key()}, **sent)
            public = path in ("/livez", "/readyz", "/metrics")
            assert answer.status_code in (400, 403, 404, 422) or public, (verb, path, answer.status_code)
    # The names that `Ear` gives to answers hold the path; what was sent is no leak.
    for ear in ears:
        ear.answers[:] = [(name.replace(MISPLACED, "*"), answer) for name, answer in ear.answers]


async def read_all(
    app: Client, approver: Client, operator: Client, ear: Ear, jobs: Sequence[str], sessions: Sequence[str]
) -> None:
    """Every read of every job and session, and every list to its end, so that every answer is heard."""
    plugins = set[str]()
    for job in jobs:
        plugins.add((await app.status(job))["plugin"]["name"])
        await app.http.get(f"/v1/jobs/{job}/result")
        ear.heard(f"stream of {job}", json.dumps([[one.id, one.type, one.event] for one in await app.streamed(job)]))
        for event in await app.events(job):
            if event["type"] == "request.opened":
                await approver.request(job, event["data"]["request_id"])
        await operator.get(f"/v1/operator/jobs/{job}")
        await app.get(f"/v1/jobs/{job}/preview")
    for session in sessions:
        await app.get(f"/v1/sessions/{session}")
        await pages(app, f"/v1/sessions/{session}/messages")
    await pages(app, "/v1/jobs")
    await approver.get("/v1/requests")
    for path in ("/livez", "/readyz"):
        await app.get(path)
    assert (await operator.http.get("/metrics")).status_code == 200
    for path in ("/v1/grants", "/v1/api-keys", "/v1/usage"):
        await operator.get(path)
    await pages(operator, "/v1/audit")
    for name in plugins:
        await operator.get(f"/v1/plugins/{name}/versions")
        await operator.get(f"/v1/plugins/{name}/releases")
        for row in (await operator.get(f"/v1/plugins/{name}/versions"))["data"]:
            await operator.get(f"/v1/plugins/{name}/versions/{row['version']}/readiness")
    await operator.get("/v1/readiness")


async def pages(who: Client, path: str) -> None:
    after: dict[str, str] = {}
    while (page := await who.get(path, params=after))["has_more"]:
        after = {"after": page["next_cursor"]}


NOT_HERE = frozenset({"/v1/packets/{packet_id}"})
"""A packet names a job that is held, and all of this story run; tests/http/test_packets.py hears them."""


def unheard(*ears: Ear) -> set[str]:
    """Reads of the OpenAPI document of which no good answer was heard."""
    good = [name.removesuffix(" 200") for ear in ears for name, _ in ear.answers if name.endswith(" 200")]
    heard = {name.partition("?")[0] for name in good}
    reads = {path for verb, path in operations() if verb == "GET"} - GIVES_OUT_BYTES - NOT_HERE
    return {path for path in reads if not any(_fits(path, name) for name in heard)}


def _fits(path: str, name: str) -> bool:
    return re.fullmatch("GET " + re.sub(r"{[^}]*}", "[^/*]+", path), name) is not None
