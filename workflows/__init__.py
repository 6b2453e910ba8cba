"""The deterministic half: contract, policy and the loop. It computes; no clock, environment, randomness or I/O."""
