"""Sentences have nouns as subjects: in comments, docstrings and messages of the product, and in its documentation.

Comments and docstrings of the tests are held to the same; their other strings are data. In the simulation each string
counts, as its complaints are read.
Words without a noun behind them (`who`, `nobody`, `whatever`) hide the part that is meant: a consumer, a caller, an
operator.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
VAGUE = re.compile(
    r"\b(who|whom|whoever|whatever|somebody|someone|nobody|anybody|anyone|everybody|everyone)\b", re.IGNORECASE
)
BEGINS_WITHOUT_A_NOUN = re.compile(r"(?:\A[#\s>*-]*|[.:;]\s+)(What|Whose|Something)\b(?!\?)")
"""`What is acknowledged is skipped` and its like: the sentence has a noun, and says it."""

ALSO_WITHOUT_A_NOUN = re.compile(
    r"(?:[:;|]\s+\**|\S {4,})[Ww]hat (?:is|are|was|were|has|have|had|comes|follows|fails|waits|left|an?|the)\b"
)
"""The same behind a colon, in a table or in a list of two columns; complaints of the simulation are short."""

ROOMS = [*sorted(path.parent.name for path in ROOT.glob("*/__init__.py")), "tests/simulation"]
PAGES = (
    "README.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "Containerfile",
    "config/broker.conf",
    "broker/configuration/*.conf",
    "broker/monitoring/*.yml",
    "broker/page/static/*.js",
    "config/systemd/*",
    "docs/*.md",
)

QUOTED = ("docs/simulation.md",)
"""Pages with tables of names and complaints of mutants, which are quoted."""


def _texts(path: Path) -> Iterator[tuple[int, str]]:
    """Give the line and the text of each comment and each string; examples in docstrings are code."""
    source = path.read_text()
    yield from _comments(source)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, re.sub(r"(?m)^\s*(>>>|\.\.\.).*$", "", node.value)


def _texts_of_a_test(path: Path) -> Iterator[tuple[int, str]]:
    """Give the line and the text of each comment and each docstring; names stand between backticks."""
    source = path.read_text()
    yield from _comments(source)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, re.sub(r"`[^`]*`", "", node.value.value)


def _comments(source: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


@pytest.mark.parametrize("room", ROOMS)
def test_no_sentence_of_a_room_hides_its_subject(room: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text.strip()[:100]}"
        for path in sorted((ROOT / room).rglob("*.py"))
        if "pb" not in path.parts
        for line, text in _texts(path)
        if VAGUE.search(text)
        or BEGINS_WITHOUT_A_NOUN.search(text)
        or (not room.startswith("tests") and ALSO_WITHOUT_A_NOUN.search(text))
    ]

    assert found == []


@pytest.mark.slow
def test_no_sentence_of_a_test_hides_its_subject() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text.strip()[:100]}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if "simulation" not in path.parts
        for line, text in _texts_of_a_test(path)
        if VAGUE.search(text) or BEGINS_WITHOUT_A_NOUN.search(text)
    ]

    assert found == []


def test_no_sentence_of_the_documentation_hides_its_subject() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line[:100]}"
        for pattern in PAGES
        for path in sorted(ROOT.glob(pattern))
        if str(path.relative_to(ROOT)) not in QUOTED
        for number, line in enumerate(path.read_text().splitlines(), 1)
        # Names of tests stand between backticks.
        if VAGUE.search(re.sub(r"`[^`]*`", "", line))
        or (pattern != "CHANGELOG.md" and ALSO_WITHOUT_A_NOUN.search(re.sub(r"`[^`]*`", "", line)))
        or (BEGINS_WITHOUT_A_NOUN.search(line) and not line.startswith(("#", "**", "What a beginner", "- **")))
    ]

    assert found == []
