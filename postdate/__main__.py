"""`python -m postdate`: the program `postdate`."""

from postdate.command_line.main import main

main()
