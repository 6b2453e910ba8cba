"""`python -m gateway.cli` is `jobgate`."""

from gateway.cli import main

main()
