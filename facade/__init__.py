"""The window: reads and projects. Nothing here has a verb that changes anything."""
