"""The example plugin that asks a person where feedback belongs and files it, with the ticket service it calls."""
