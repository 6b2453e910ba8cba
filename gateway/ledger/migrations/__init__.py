"""The ledger's schema, forward only: each file in `versions` is one step, and no step is edited once released."""
