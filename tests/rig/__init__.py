"""The rig of the tests: real servers behind the tools and the model, real processes of ours, and helpers that wait."""
