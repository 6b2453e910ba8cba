"""The deterministic half: contract, policy and the loop. It computes; it has no clock, environment, randomness or I/O."""
