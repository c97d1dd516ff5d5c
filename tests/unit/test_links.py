"""Links of the documentation lead somewhere: to a file of the repository, and to a heading of that page."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.pages import ROOT

PAGES = [
    *(ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "tests/README.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]


def _text_of(page: Path) -> str:
    """Return a page without its blocks of code, in which neither a link nor a heading is one."""
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def _links_of(text: str) -> list[str]:
    return [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if not re.match(r"\w+:", link)]


def _anchors_of(text: str) -> set[str]:
    """Return the anchors that GitHub gives to headings."""
    headings = re.findall(r"^#+ +(.+?) *$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _dead_links_of(page: Path) -> Iterator[str]:
    for link in _links_of(_text_of(page)):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if not target.exists() or (anchor and anchor not in _anchors_of(_text_of(target))):
            yield link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    assert list(_dead_links_of(page)) == []


def test_dead_links_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# `One` heading, twice\n[a](#one-heading-twice) [b](#two) [c](gone.md) [d](page.md#three) [e](page.md)\n"
        "[f](https://example.org/gone)\n```\n# two\n[g](gone.md)\n```\n"
    )

    assert list(_dead_links_of(page)) == ["#two", "gone.md", "page.md#three"]


def test_every_page_that_is_named_exists() -> None:
    """Pages that are named in text or in a docstring, without a link."""
    places = [path for room in ROOT.glob("*/__init__.py") for path in room.parent.rglob("*.py")]
    places += [*PAGES, ROOT / "Makefile", ROOT / "pyproject.toml", *(ROOT / "tests").rglob("*.py")]
    places.remove(Path(__file__))
    dead = {
        f"{place.relative_to(ROOT)}: {name}"
        for place in places
        for name in re.findall(r"(?<![\w/.-])[\w/-]+\.md\b", place.read_text())
        if not any(
            (folder / name).exists() for folder in (ROOT, ROOT / "docs", ROOT / "benchmarks/results", place.parent)
        )
    }

    assert dead == set()
