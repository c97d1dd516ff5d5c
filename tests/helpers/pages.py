"""The example of an embedded tracker, as pages of the documentation have it."""

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = {"README.md": "## Embedding the tracker", "docs/embedding.md": "# Embedding the tracker"}
"""By page: the heading above the example."""


def example_of(page: str) -> tuple[str, str]:
    """Return the program that embeds a tracker, and what it is said to print."""
    section = (ROOT / page).read_text().split(PAGES[page])[1]
    found = re.search(r"```python\n(.*?)```\n\n```\n(.*?)```", section, re.DOTALL)
    assert found is not None
    return found[1], found[2]
