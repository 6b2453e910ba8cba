"""The desk behind the example: two pieces of feedback, and tickets that are filed once per `Idempotency-Key`.

It owns one SQLite file. A repeat of a key gets the first ticket. Nothing here knows Jobgate.
"""

import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from examples.serving import run

SCHEMA = """
CREATE TABLE IF NOT EXISTS tickets (
    number INTEGER PRIMARY KEY, effect_id TEXT NOT NULL UNIQUE, feedback TEXT NOT NULL, team TEXT NOT NULL,
    summary TEXT NOT NULL);
"""
FEEDBACK = {
    "fb_1": {"id": "fb_1", "customer": "Ada", "text": "My invoice lists four seats that I removed last month."},
    "fb_2": {"id": "fb_2", "customer": "Grace", "text": "I can not export the monthly report as CSV."},
}


class TicketOrder(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    feedback: str
    team: Literal["billing", "product", "support"]
    summary: str = Field(max_length=200)


class Ticket(BaseModel):
    model_config = ConfigDict(frozen=True)
    ticket_id: str
    effect_id: str
    feedback: str
    team: str
    summary: str


def table(path: Path) -> list[Ticket]:
    """Every ticket ever filed, oldest first, read from the desk's own file."""
    with closing(sqlite3.connect(path)) as db:
        return [_ticket(row) for row in db.execute("SELECT * FROM tickets ORDER BY number")]


def app(path: Path) -> Starlette:
    with closing(sqlite3.connect(path)) as db:
        db.executescript(SCHEMA)

    def read_feedback(request: Request) -> JSONResponse:
        found = FEEDBACK.get(request.path_params["feedback_id"])
        return JSONResponse(found) if found else JSONResponse({"error": "feedback-unknown"}, 404)

    def search(request: Request) -> JSONResponse:
        wanted = request.query_params.get("feedback", "")
        return JSONResponse({"tickets": [t.model_dump() for t in table(path) if t.feedback == wanted]})

    async def create(request: Request) -> JSONResponse:
        effect_id = request.headers.get("Idempotency-Key")
        if not effect_id:
            return JSONResponse({"error": "idempotency-key-required"}, 400)
        try:
            order = TicketOrder.model_validate_json(await request.body())
        except ValidationError:
            return JSONResponse({"error": "ticket-invalid"}, 422)
        ticket = _file(path, effect_id, order)
        if ticket.model_dump(include=set(TicketOrder.model_fields)) != order.model_dump():
            return JSONResponse({"error": "key-reused"}, 422)
        return JSONResponse(ticket.model_dump(), 201)

    return Starlette(
        routes=[
            Route("/feedback/{feedback_id}", read_feedback),
            Route("/tickets", search),
            Route("/tickets", create, methods=["POST"]),
        ]
    )


def _file(path: Path, effect_id: str, order: TicketOrder) -> Ticket:
    """The ticket of this effect: made now, or the first one."""
    with closing(sqlite3.connect(path, timeout=10)) as db, db:
        db.execute(
            "INSERT INTO tickets (effect_id, feedback, team, summary) VALUES (?, ?, ?, ?)"
            " ON CONFLICT (effect_id) DO NOTHING",
            (effect_id, order.feedback, order.team, order.summary),
        )
        return _ticket(db.execute("SELECT * FROM tickets WHERE effect_id = ?", (effect_id,)).fetchone())


def _ticket(row: tuple[int, str, str, str, str]) -> Ticket:
    number, effect_id, feedback, team, summary = row
    return Ticket(ticket_id=f"T-{number}", effect_id=effect_id, feedback=feedback, team=team, summary=summary)


if __name__ == "__main__":
    sys.exit(run(app, program="examples.feedback_assistant.tickets", token_variable="DESK_TOKEN"))
