"""The door out: permit -> resolve credential -> inject -> send -> scrub -> record. Unreachable from admission and routes."""
