"""Alembic's entry: runs the steps on the connection that `gateway.ledger.migrate` hands over, inside its transaction."""

from alembic import context

from gateway.ledger.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
context.run_migrations()
