"""`python -m regard` is the command line."""

from regard.cli.main import main

main()
