"""Print the program that `spark-submit` takes: `spark-submit "$(python -m postdate.pipeline)" rebuild DATA`."""

import sys
from pathlib import Path

sys.stdout.write(f"{Path(__file__).parent / 'cli' / 'main.py'}\n")
