"""Pure rules: (facts, now) -> a verdict with a reason."""
