"""Alembic's entry: runs the steps inside the transaction of the connection that `gateway.ledger.migrate` hands over."""

from alembic import context

from gateway.ledger import authority_tables, catalog_tables
from gateway.ledger.tables import metadata

__all__ = ["authority_tables", "catalog_tables"]  # importing them puts their tables into the metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
context.run_migrations()
