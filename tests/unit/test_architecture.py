"""ARCHITECTURE.md and the documentation name tests for what they say: they exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "ARCHITECTURE.md", *(ROOT / "docs").glob("*.md"))
TEXT = "\n".join(page.read_text() for page in PAGES)


def test_every_test_that_is_named_exists() -> None:
    sources = [path.read_text() for path in (ROOT / "tests").rglob("test_*.py")]
    existing = {name for source in sources for name in re.findall(r"^def (test_\w+)\(", source, re.MULTILINE)}

    named = set(re.findall(r"`(test_\w+)`", TEXT))

    assert named
    assert named - existing == set()


def test_every_file_of_tests_that_is_named_exists() -> None:
    named = re.findall(r"`(tests/[\w/.]+)`", TEXT)

    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []
