"""How the ledger keeps what databases disagree about: instants, JSON documents, texts, and numbers handed out in order.

Both ends are fixed here, integer microseconds and our own JSON text, so that no driver's idea of either matters. A text
with U+0000, which PostgreSQL keeps nowhere, is the caller's fault on every database, and never reaches one.
"""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import BigInteger, Integer, Text
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator

from workflows.contract.errors import ProblemCode, Refused

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class Instant(TypeDecorator[datetime]):
    """An aware `datetime`, kept as integer microseconds since the epoch, UTC."""

    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> int | None:
        return None if value is None else (value - _EPOCH) // _MICROSECOND

    def process_result_value(self, value: int | None, dialect: Dialect) -> datetime | None:
        return None if value is None else _EPOCH + timedelta(microseconds=value)


class Words(TypeDecorator[str]):
    """A text. Raises `Refused(INPUT_INVALID)` for U+0000, whoever wrote it and wherever it came in.

    The documents of `JsonText` escape it, and bytes may hold it.
    """

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        if value is not None and "\0" in value:
            raise Refused(ProblemCode.INPUT_INVALID, "A text holds the character U+0000, which is not taken here.")
        return value


class JsonText(TypeDecorator[Any]):
    """A JSON document as text; `None` is SQL NULL, so a JSON null is not kept."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        if value is None:
            return None
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:
        return None if value is None else json.loads(value)


Serial = BigInteger().with_variant(Integer, "sqlite")
"""A number the database hands out, rising; SQLite numbers only its own INTEGER PRIMARY KEY."""
