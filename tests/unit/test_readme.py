"""The programs of the README and the documentation run as they stand, and print what is said there."""

import ast
import re
import subprocess
import sys

import pytest

from tests.helpers.pages import PAGES, ROOT, example_of

LINES_MAX = 130
EMBEDDING_LINES_MAX = 15
ARCHITECTURE_LINES_MAX = 260
CHARACTERS_MAX = 130
"""Of a line that is no row of a table."""


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_the_embedded_tracker_does_what_the_page_shows(page: str) -> None:
    program, output = example_of(page)

    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)

    assert ran.stderr == ""
    assert ran.stdout == output


@pytest.mark.parametrize("page", PAGES)
def test_an_embedding_program_has_the_format_of_the_code(page: str) -> None:
    program, _ = example_of(page)

    words = [sys.executable, "-m", "ruff", "format", "--config", str(ROOT / "pyproject.toml"), "-"]
    formatted = subprocess.run(words, input=program, capture_output=True, text=True, timeout=60, check=True)

    assert formatted.stdout == program


@pytest.mark.parametrize("page", PAGES)
def test_an_embedding_program_imports_postdate_alone(page: str) -> None:
    program, _ = example_of(page)

    nodes = list(ast.walk(ast.parse(program)))
    imported = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}

    assert imported == {"asyncio", "postdate"}
    assert not any(isinstance(node, ast.ImportFrom) for node in nodes)


@pytest.mark.parametrize(("page", "lines_max"), [("README.md", LINES_MAX), ("ARCHITECTURE.md", ARCHITECTURE_LINES_MAX)])
def test_the_readme_and_the_map_of_the_code_are_read_in_a_few_minutes(page: str, lines_max: int) -> None:
    lines = (ROOT / page).read_text().splitlines()

    assert len(lines) <= lines_max
    assert [line for line in lines if len(line) > CHARACTERS_MAX and not line.startswith("|")] == []


def test_the_embedding_example_of_the_readme_is_short() -> None:
    assert len(example_of("README.md")[0].splitlines()) <= EMBEDDING_LINES_MAX


def test_every_page_that_the_readme_names_exists() -> None:
    named = re.findall(r"\]\(([\w/.-]+)(?:#[\w-]+)?\)", (ROOT / "README.md").read_text())

    assert {f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")} - {*named} <= {
        "docs/index.md",
        "docs/rocksdict-reports.md",
    }
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_the_readme_says_what_to_use_for_messages_that_repeat() -> None:
    assert "No cron: let a cron job or APScheduler publish each message" in (ROOT / "README.md").read_text()
