"""Makes the simulation's parts importable: one set of fakes for unit tests and simulation."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "simulation"))
