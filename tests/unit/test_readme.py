"""The README's program runs as it stands and prints what the README says."""

import ast
import subprocess
import sys

import pytest

from tests.helpers.pages import PAGES, example_of


@pytest.mark.parametrize("page", PAGES)
def test_the_embedded_tracker_does_what_the_page_shows(page: str) -> None:
    program, output = example_of(page)

    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)

    assert ran.stderr == ""
    assert ran.stdout == output


@pytest.mark.parametrize("page", PAGES)
def test_an_embedding_program_imports_postdate_alone(page: str) -> None:
    program, _ = example_of(page)

    nodes = list(ast.walk(ast.parse(program)))
    imported = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}

    assert imported == {"asyncio", "postdate"}
    assert not any(isinstance(node, ast.ImportFrom) for node in nodes)
