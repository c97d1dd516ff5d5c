"""`python -m broker.cli`: the program `postdate`, from a checkout."""

from broker.cli.main import main

main()
