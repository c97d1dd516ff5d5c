"""The README's program runs as it stands and prints what the README says."""

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def test_the_embedded_tracker_does_what_the_readme_shows() -> None:
    section = README.read_text().split("## Embedding the tracker")[1]
    program, output = re.findall(r"```(?:python)?\n(.*?)```", section, re.DOTALL)[:2]

    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)

    assert ran.stderr == ""
    assert ran.stdout == output
