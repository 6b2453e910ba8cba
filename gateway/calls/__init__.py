"""The door out: permit -> resolve credential -> inject -> send -> scrub -> record. No route reaches it."""
