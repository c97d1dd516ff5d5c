"""Makes the log's fakes importable: one set for unit, property and fault tests."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "property"))
