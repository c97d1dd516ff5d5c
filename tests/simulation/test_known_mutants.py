"""The faults that `mutants.py` puts in are still faults of today's code."""

from pathlib import Path

from tests.simulation import known_mutants

ROOT = Path(__file__).parents[2]


def test_every_known_mutant_replaces_a_text_that_stands_once() -> None:
    mutants = [one for group in vars(known_mutants).values() if isinstance(group, list) for one in group]
    edits = [(one.name, edit) for one in mutants for edit in one.edits]

    assert len(edits) >= 40
    assert [(name, edit.file) for name, edit in edits if (ROOT / edit.file).read_text().count(edit.old) != 1] == []
