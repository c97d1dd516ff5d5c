"""Print the program that `spark-submit` takes: `spark-submit "$(python -m postdate.snapshot_tools)" snapshots ...`."""

import sys
from importlib.util import find_spec

_program = find_spec("postdate.command_line.main")
assert _program is not None
sys.stdout.write(f"{_program.origin}\n")
