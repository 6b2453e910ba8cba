"""Fixtures of unit tests: a migrated ledger on each database that is at hand."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.calls.egress import Door
from gateway.ledger.engine import Ledger
from gateway.ledger.migrate import migrate


@pytest.fixture(params=["sqlite"])
def ledger_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A fresh, migrated ledger; another database is one more parameter here."""
    assert request.param == "sqlite"
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    migrate(url)
    return url


@pytest.fixture
async def ledger(ledger_url: str) -> AsyncIterator[Ledger]:
    opened = Ledger.open(ledger_url)
    yield opened
    await opened.close()


@pytest.fixture
async def door() -> AsyncIterator[Door]:
    """The one way out, opened for one test."""
    async with Door() as opened:
        yield opened
