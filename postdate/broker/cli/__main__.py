"""`python -m postdate`: the program `postdate`, from a checkout, and as the file that `spark-submit` takes."""

from postdate.broker.cli.main import main

main()
