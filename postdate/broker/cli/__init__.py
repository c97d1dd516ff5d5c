"""The program `postdate` and the commands that are the service's own."""
