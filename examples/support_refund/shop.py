"""The shop behind the example: four invoices, and refunds that happen once whatever is sent twice.

It owns one SQLite file. `Idempotency-Key` is the identity of a refund: its repeats get the first refund.
`Jobgate-Epoch` orders the senders: whoever comes with a lower one than was seen for the key is refused.
"""

import sqlite3
import sys
from collections.abc import Generator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from examples.serving import run

SCHEMA = """
CREATE TABLE IF NOT EXISTS invoices (
    id TEXT PRIMARY KEY, currency TEXT NOT NULL, plan_cents INTEGER NOT NULL, total_cents INTEGER NOT NULL,
    note TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS refunds (
    effect_id TEXT PRIMARY KEY, refund_id TEXT NOT NULL, invoice TEXT NOT NULL, amount_cents INTEGER NOT NULL,
    epoch INTEGER NOT NULL, created_at TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS epochs (effect_id TEXT PRIMARY KEY, highest INTEGER NOT NULL);
"""
INVOICES = (
    ("inv_17", "EUR", 4900, 6100, "Four seats were billed after they had been removed, 1200 cents over the plan."),
    ("inv_18", "EUR", 4900, 4900, "The charges match the plan."),
    ("inv_19", "EUR", 4900, 4980, "A reminder fee was billed by mistake, 80 cents over the plan."),
    ("inv_20", "EUR", 4900, 7400, "An upgrade was billed twice, 2500 cents over the plan."),
)


@dataclass(frozen=True, slots=True)
class Refund:
    """One row of the shop's own table: money given back."""

    effect_id: str
    refund_id: str
    invoice: str
    amount_cents: int
    epoch: int
    created_at: str


class RefundOrder(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    invoice: str
    amount_cents: int


class Declined(Exception):
    """The shop's answer when it does nothing: an HTTP status and a stable word."""

    def __init__(self, status: int, error: str) -> None:
        super().__init__(error)
        self.status = status
        self.error = error


class Shop:
    """The shop's file. Every method is one transaction; times are UTC, amounts are cents."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with closing(sqlite3.connect(path)) as db:
            db.executescript(SCHEMA)
            db.executemany("INSERT OR IGNORE INTO invoices VALUES (?, ?, ?, ?, ?)", INVOICES)
            db.commit()

    @contextmanager
    def _transaction(self) -> Generator[sqlite3.Connection, None, None]:
        with closing(sqlite3.connect(self._path, isolation_level=None, timeout=10)) as db:
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
            except Declined:
                # The epoch stays recorded: a sender that was overtaken stays overtaken.
                db.execute("COMMIT")
                raise
            db.execute("COMMIT")

    def invoice(self, invoice_id: str) -> dict[str, str | int]:
        """`overage_cents` is what was charged over the plan and has not been given back yet."""
        with self._transaction() as db:
            row = db.execute(
                "SELECT currency, plan_cents, total_cents, note FROM invoices WHERE id = ?", (invoice_id,)
            ).fetchone()
            if row is None:
                raise Declined(404, "invoice-unknown")
            currency, plan, total, note = row
            refunded = _refunded(db, invoice_id)
        return {
            "id": invoice_id,
            "currency": currency,
            "plan_cents": plan,
            "total_cents": total,
            "refunded_cents": refunded,
            "overage_cents": total - plan - refunded,
            "note": note,
        }

    def refund(self, effect_id: str, epoch: int, order: RefundOrder) -> tuple[Refund, bool]:
        """The refund of this effect, and whether this call made it."""
        with self._transaction() as db:
            (highest,) = db.execute(
                "INSERT INTO epochs VALUES (?, ?) ON CONFLICT (effect_id)"
                " DO UPDATE SET highest = max(highest, excluded.highest) RETURNING highest",
                (effect_id, epoch),
            ).fetchone()
            if epoch < highest:
                raise Declined(409, "epoch-stale")
            first = _find(db, effect_id)
            if first is not None:
                if (first.invoice, first.amount_cents) != (order.invoice, order.amount_cents):
                    raise Declined(422, "key-reused")
                return first, False
            row = db.execute("SELECT total_cents - plan_cents FROM invoices WHERE id = ?", (order.invoice,)).fetchone()
            if row is None:
                raise Declined(404, "invoice-unknown")
            if not 0 < order.amount_cents <= row[0] - _refunded(db, order.invoice):
                raise Declined(422, "amount-exceeds-overage")
            (earlier,) = db.execute("SELECT count(*) FROM refunds").fetchone()
            made = Refund(effect_id, f"ref_{earlier + 1}", order.invoice, order.amount_cents, epoch, _now())
            db.execute("INSERT INTO refunds VALUES (?, ?, ?, ?, ?, ?)", tuple(asdict(made).values()))
            return made, True

    def find(self, effect_id: str) -> Refund | None:
        with self._transaction() as db:
            return _find(db, effect_id)


def table(path: Path) -> list[Refund]:
    """Every refund the shop ever made, oldest first: the proof of what ran, read from the shop's own file."""
    with closing(sqlite3.connect(path)) as db:
        return [Refund(*row) for row in db.execute("SELECT * FROM refunds ORDER BY rowid")]


def app(path: Path) -> Starlette:
    shop = Shop(path)

    def read_invoice(request: Request) -> JSONResponse:
        return JSONResponse(shop.invoice(request.path_params["invoice_id"]))

    async def create_refund(request: Request) -> JSONResponse:
        effect_id, epoch = request.headers.get("Idempotency-Key"), request.headers.get("Jobgate-Epoch", "")
        if not effect_id or not epoch.isdecimal() or len(epoch) > 18:
            raise Declined(400, "idempotency-key-and-epoch-required")
        try:
            order = RefundOrder.model_validate_json(await request.body())
        except ValidationError:
            raise Declined(422, "refund-invalid") from None
        refund, made = await run_in_threadpool(shop.refund, effect_id, int(epoch), order)
        return JSONResponse(asdict(refund), 201 if made else 200)

    def find_refund(request: Request) -> JSONResponse:
        refund = shop.find(request.query_params.get("effect_id", ""))
        return JSONResponse({"found": refund is not None, "result": asdict(refund) if refund else {}})

    def declined(_: Request, reason: Exception) -> JSONResponse:
        assert isinstance(reason, Declined)
        return JSONResponse({"error": reason.error}, reason.status)

    return Starlette(
        routes=[
            Route("/invoices/{invoice_id}", read_invoice),
            Route("/refunds", create_refund, methods=["POST"]),
            Route("/refunds", find_refund),
        ],
        exception_handlers={Declined: declined},
    )


def _find(db: sqlite3.Connection, effect_id: str) -> Refund | None:
    row = db.execute("SELECT * FROM refunds WHERE effect_id = ?", (effect_id,)).fetchone()
    return Refund(*row) if row else None


def _refunded(db: sqlite3.Connection, invoice: str) -> int:
    return db.execute("SELECT coalesce(sum(amount_cents), 0) FROM refunds WHERE invoice = ?", (invoice,)).fetchone()[0]


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


if __name__ == "__main__":
    sys.exit(run(app, program="examples.support_refund.shop", token_variable="SHOP_TOKEN"))
