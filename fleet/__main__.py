"""`python -m fleet`: the same as the `fleet` script."""

from fleet.cli.main import main

main()
