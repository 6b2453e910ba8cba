"""The hands: model and tool calls, and the worker process."""
