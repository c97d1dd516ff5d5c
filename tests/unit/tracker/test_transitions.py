"""Each thing that can happen to a bucket is written down once, and nothing else changes a bucket."""

import ast
from dataclasses import fields
from pathlib import Path
from random import Random
from typing import get_args

import pytest

from snapshot_storage.bucket_key import LedgerRange
from snapshot_storage.encoding.columns import DelayedIndexes
from tracker.config import TrackerConfig
from tracker.core.actions import (
    Action,
    ActionFailed,
    DeleteSnapshot,
    Event,
    ListSnapshots,
    PropertyPut,
    SegmentsLoaded,
    SnapshotDeleted,
    SnapshotsListed,
)
from tracker.core.bucket import NEXT_STATES, Bucket, BucketState
from tracker.core.state import TrackerState
from tracker.core.transitions.life import move, new_bucket
from tracker.core.transitions.table import COLUMNS, TABLE, Unexpected, handle
from tracker.testing import FakeCursor

ROOT = Path(__file__).parents[3]
TRANSITIONS = ROOT / "tracker" / "core" / "transitions"
OTHERS_TOO = {"key", "state", "serial", "table", "parts", "sources", "load", "read", "ledgers"}
"""Fields of a bucket of which other classes have one of the same name: there the object's name decides."""


def _state() -> TrackerState:
    return TrackerState(
        TrackerConfig(),
        acknowledged_in=FakeCursor().acknowledged_in,
        rng=Random(1),
        keeps_positions=False,
        cached_bytes_max=1,
    )


def test_every_state_has_a_way_on_and_gone_is_the_only_end() -> None:
    assert set(NEXT_STATES) == set(BucketState)
    assert [state for state, targets in NEXT_STATES.items() if not targets] == [BucketState.GONE]


def test_a_bucket_that_is_gone_does_not_come_back() -> None:
    state = _state()
    bucket = new_bucket(state, LedgerRange(1, 5), "bucket_1_5", BucketState.SEALING)
    move(state, bucket, BucketState.GONE)

    with pytest.raises(AssertionError, match="bucket_1_5"):
        move(state, bucket, BucketState.SEALING)


def test_the_table_says_of_each_event_in_each_state_what_happens_or_why_nothing_can() -> None:
    """Answers by their own name, failures by that of the action."""
    answers = set(get_args(Event)) - {ActionFailed, SnapshotsListed}
    failures = set(get_args(Action)) - {ListSnapshots}
    states = set(BucketState) - {BucketState.GONE}

    assert set(COLUMNS) == states
    assert TABLE.keys() == {(kind, state) for kind in answers | failures for state in states}


_ROWS_OF_ARCHITECTURE = {
    "snapshot created": ["SnapshotCreated"],
    "create or merge failed": ["PersistBucket", "MergeBuckets"],
    "property put": ["PropertyPut"],
    "put failed": ["PutProperty"],
    "metadata read": ["MetadataRead"],
    "alien, or lost": ["SnapshotIsAlien"],
    "read failed": ["ReadMetadata", "LoadSegments", "ReadPositions"],
    "segments loaded": ["SegmentsLoaded"],
    "positions read": ["PositionsRead"],
    "snapshot deleted": ["SnapshotDeleted"],
    "property removed": ["PropertyRemoved"],
}
_OF_LOST_SNAPSHOTS = {("alien, or lost", BucketState.SEALED)}
"""A snapshot that is lost is told by a read that fails."""


def test_architecture_has_the_table_of_the_code() -> None:
    """A cell is empty where no event can be, `late` where it is ignored, and names a state that may follow."""
    lines = (ROOT / "ARCHITECTURE.md").read_text().splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("| | SEALING"))
    states = [BucketState[name.strip()] for name in lines[first].split("|")[2:-1]]
    told = {}
    for line in lines[first + 2 : first + 2 + len(_ROWS_OF_ARCHITECTURE)]:
        name, *cells = [cell.strip() for cell in line.split("|")[1:-1]]
        told |= {(name, state): cell for state, cell in zip(states, cells, strict=True)}

    assert states == list(COLUMNS)
    for (name, state), cell in told.items():
        entries = [
            entry for (kind, of), entry in TABLE.items() if of is state and kind.__name__ in _ROWS_OF_ARCHITECTURE[name]
        ]
        is_handled = any(not isinstance(entry, Unexpected) for entry in entries) or (name, state) in _OF_LOST_SNAPSHOTS
        is_late = not is_handled and Unexpected.LATE in entries
        assert (cell == "late", bool(cell)) == (is_late, is_late or is_handled), (name, state)
        if cell in BucketState.__members__:
            assert BucketState[cell] in NEXT_STATES[state], (name, state)


def test_every_state_that_calls_the_storage_has_an_answer_and_a_failure() -> None:
    for state in COLUMNS:
        handled = {kind for (kind, of), entry in TABLE.items() if of is state and not isinstance(entry, Unexpected)}
        assert handled & set(get_args(Event)), state
        assert handled & set(get_args(Action)), state


def test_an_answer_that_no_state_can_have_asked_for_is_a_defect() -> None:
    state = _state()
    bucket = new_bucket(state, LedgerRange(1, 5), "bucket_1_5", BucketState.SEALING)
    state.calls.properties.breaker.started()

    with pytest.raises(AssertionError, match="PropertyPut for bucket_1_5"):
        handle(state, PropertyPut(bucket.serial), 1_000)


@pytest.mark.parametrize("is_gone", [False, True])
def test_an_answer_that_comes_late_changes_nothing(is_gone: bool) -> None:
    """The bucket is being deleted, or is not there any more."""
    state = _state()
    bucket = new_bucket(state, LedgerRange(1, 5), "", BucketState.DELETING)
    if is_gone:
        state.calls.deletes.breaker.started()
        handle(state, SnapshotDeleted(bucket.serial), 1_000)
    state.calls.loads.started()

    handle(state, SegmentsLoaded(bucket.serial, 1, 1, DelayedIndexes.of([5], [1], [1]), 0), 1_000)

    assert bucket.state is (BucketState.GONE if is_gone else BucketState.DELETING)
    assert state.rows.row_count == 0


def test_a_failure_is_found_by_the_action_that_failed() -> None:
    state = _state()
    bucket = new_bucket(state, LedgerRange(1, 5), "", BucketState.DELETING)
    bucket.work = action = DeleteSnapshot(bucket.serial, 7, is_own=True)
    state.calls.deletes.breaker.started()

    handle(state, ActionFailed(action, False, "down"), 1_000)

    assert bucket.state is BucketState.DELETING
    assert bucket.work is None
    assert bucket.work_attempts.failures == 1


def _assigned(path: Path) -> list[tuple[str, str, int]]:
    """Return the objects and fields that a module assigns to, with the lines."""
    found: list[tuple[str, str, int]] = []
    for node in ast.walk(ast.parse(path.read_text())):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = [node.target]
        elif isinstance(node, ast.Delete):
            targets = node.targets
        parts = [part for target in targets for part in (target.elts if isinstance(target, ast.Tuple) else [target])]
        found += [
            (ast.unparse(part.value), part.attr, part.lineno) for part in parts if isinstance(part, ast.Attribute)
        ]
    return found


def _changes_a_bucket(owner: str, field: str) -> bool:
    names = {one.name for one in fields(Bucket)}
    if field not in names or owner == "self":
        return False
    return field not in OTHERS_TOO or "bucket" in owner or owner in ("source", "target", "orphan")


def test_only_transitions_change_a_bucket() -> None:
    """Whoever wants to know what holds between two lines has to read no other module."""
    modules = [path for path in (ROOT / "tracker").rglob("*.py") if not path.is_relative_to(TRANSITIONS)]
    changes = [
        f"{path.relative_to(ROOT)}:{line}: {owner}.{field}"
        for path in modules
        for owner, field, line in _assigned(path)
        if _changes_a_bucket(owner, field)
    ]

    assert len(modules) > 40
    assert changes == []


def test_the_search_for_changes_finds_those_of_the_transitions() -> None:
    found = [one for path in TRANSITIONS.glob("*.py") for one in _assigned(path) if _changes_a_bucket(*one[:2])]

    assert len(found) > 40
    assert {field for _, field, _ in found} > {"state", "loaded_spans", "cached", "work", "merging_into"}


def test_questions_assign_nothing() -> None:
    """A question changes nothing."""
    assert _assigned(ROOT / "tracker" / "core" / "questions.py") == []
