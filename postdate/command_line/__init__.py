"""The shared parts of all commands of `postdate`: exit codes, times, JSON and progress.

Commands themselves are left out: they are in their rooms. `extras` and `client_tls` need the standard library alone,
since they run where nothing else is installed; the other modules need click, and `progress` needs rich.
"""
