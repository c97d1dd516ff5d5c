"""Lets the suite import its own helpers as `tests.contract...`, whatever pytest was started from."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
