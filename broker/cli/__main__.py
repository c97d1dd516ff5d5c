"""`python -m broker.cli`: the program `postdate`, from a checkout, and as the file that `spark-submit` takes."""

from broker.cli.main import main

main()
