"""Fixtures of unit tests: a migrated ledger on each database that is at hand."""

from collections.abc import AsyncIterator, Iterator
from itertools import count
from pathlib import Path

import pytest

from gateway.calls.egress import Door
from gateway.ledger.engine import Ledger
from gateway.ledger.migrate import migrate
from tests.rig.postgres import Postgres

_NUMBERS = count(1)


@pytest.fixture(scope="session")
def postgres_template(postgres: Postgres) -> str:
    """A migrated database that nobody is connected to; a copy of it is a fresh ledger."""
    migrate(postgres.create_database("ledger_template"))
    return "ledger_template"


@pytest.fixture(params=["sqlite", "postgres"])
def ledger_url(request: pytest.FixtureRequest) -> str:
    """A fresh, migrated ledger on each database."""
    return request.getfixturevalue(f"{request.param}_url")


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """For what only a file can suffer; else take `ledger_url`."""
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    migrate(url)
    return url


@pytest.fixture
def postgres_url(postgres: Postgres, postgres_template: str) -> Iterator[str]:
    """For what only a server can suffer; else take `ledger_url`."""
    name = f"ledger_{next(_NUMBERS)}"
    yield postgres.create_database(name, postgres_template)
    postgres.drop_database(name)


@pytest.fixture(params=["sqlite", "postgres"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database of each kind without any table."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'new' / 'ledger.db'}"
        return
    server: Postgres = request.getfixturevalue("postgres")
    name = f"empty_{next(_NUMBERS)}"
    yield server.create_database(name)
    server.drop_database(name)


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
