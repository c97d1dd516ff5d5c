"""One voice for the commands of `postdate`, whichever room brings them: endings, names, times, JSON and progress.

What a command does is its own room's business. `extras` needs the standard library alone, since it speaks where nothing
else is installed; the other modules need click, and `progress` needs rich.
"""
