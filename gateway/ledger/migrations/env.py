"""Alembic's entry: runs the steps inside the transaction of the connection that `gateway.ledger.migrate` hands over."""

from alembic import context

from gateway.ledger.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
context.run_migrations()
