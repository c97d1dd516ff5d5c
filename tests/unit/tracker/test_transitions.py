"""Each thing that can happen to a bucket is written down once, and nothing else changes a bucket."""

import ast
import asyncio
import re
from dataclasses import fields
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, get_args

import pytest

from postdate.testing import FakeCursor
from snapshot_storage.bucket_key import LedgerRange
from snapshot_storage.encoding.columns import DelayedIndexes
from tests.helpers.core_lives import RandomLife
from tests.helpers.one_writer import PARTS, RECORDS
from tests.helpers.seeds import seeds
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
from tracker.core.transitions import table
from tracker.core.transitions.life import move, new_bucket
from tracker.core.transitions.operations import OPERATIONS, CallerEvent, Unmet, meet
from tracker.core.transitions.table import COLUMNS, TABLE, Unexpected, handle

ROOT = Path(__file__).parents[3]
TRANSITIONS = ROOT / "tracker" / "core" / "transitions"
FIELDS = {one.name for one in fields(Bucket)}
OTHERS_TOO = {"key", "state", "serial", "table", "parts", "sources", "load", "read", "ledgers"}
"""Fields of a bucket of which classes outside the core have one of the same name."""
PURE = {
    *("bitmaps_of", "breaker_of", "check", "contains", "covering", "due_sources", "due_through_ms"),
    *("entry_ids_through", "first_ms_through", "first_unloaded", "get", "have_one_row_each", "holds", "in_order"),
    *("is_wanted", "items", "keys", "ledger_ids", "loaded_slowly", "mask", "mutable_in", "queue_of", "set_of"),
    *("values", "when"),
}


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
    "create, merge or put failed": ["PersistBucket", "MergeBuckets", "PutProperty"],
    "property put": ["PropertyPut"],
    "metadata read": ["MetadataRead"],
    "alien, or lost": ["SnapshotIsAlien"],
    "read failed": ["ReadMetadata", "LoadSegments", "ReadPositions"],
    "segments loaded": ["SegmentsLoaded"],
    "positions read": ["PositionsRead"],
    "snapshot deleted (or not)": ["SnapshotDeleted", "DeleteSnapshot"],
    "property removed (or not)": ["PropertyRemoved", "RemoveProperty"],
}
_OPERATIONS_OF_ARCHITECTURE = {
    "message added, or refused": [CallerEvent.ADDED, CallerEvent.REFUSED],
    "messages acknowledged": [CallerEvent.ACKNOWLEDGED],
    "ledger wanted": [CallerEvent.WANTED],
    "trimmed, exhausted, cleared (or merged)": [CallerEvent.TRIMMED, CallerEvent.EXHAUSTED, CallerEvent.CLEARED],
}
_OF_LOST_SNAPSHOTS = {("alien, or lost", BucketState.SEALED)}
"""A snapshot that is lost is told by a read that fails."""
_PAIRS_MET_MIN = 9


def _told() -> dict[tuple[str, BucketState], str]:
    """The cells of the table in ARCHITECTURE.md, by row and state."""
    lines = (ROOT / "ARCHITECTURE.md").read_text().splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("| | SEALING"))
    states = [BucketState[name.strip()] for name in lines[first].split("|")[2:-1]]
    assert states == list(COLUMNS)
    told = {}
    for line in lines[first + 2 : first + 2 + len(_ROWS_OF_ARCHITECTURE | _OPERATIONS_OF_ARCHITECTURE)]:
        name, *cells = [cell.strip() for cell in line.split("|")[1:-1]]
        told |= {(name, state): cell for state, cell in zip(states, cells, strict=True)}
    return told


def _named(cell: str) -> set[BucketState]:
    """The states that a cell names."""
    return {BucketState[word] for word in re.findall(r"\w+", cell) if word in BucketState.__members__}


def test_architecture_has_the_table_of_the_code() -> None:
    """A cell is empty where no event can be, and `late` where it is ignored; a column names each state that follows."""
    told = _told()
    for (name, state), cell in told.items():
        if name in _OPERATIONS_OF_ARCHITECTURE:
            parts = [OPERATIONS[event, state] for event in _OPERATIONS_OF_ARCHITECTURE[name]]
            assert bool(cell) == any(not isinstance(part, Unmet) for part in parts), (name, state)
            continue
        entries = [
            entry for (kind, of), entry in TABLE.items() if of is state and kind.__name__ in _ROWS_OF_ARCHITECTURE[name]
        ]
        is_handled = any(not isinstance(entry, Unexpected) for entry in entries) or (name, state) in _OF_LOST_SNAPSHOTS
        is_late = not is_handled and Unexpected.LATE in entries
        assert (cell == "late", bool(cell)) == (is_late, is_late or is_handled), (name, state)
    for state in COLUMNS:
        assert set().union(*(_named(cell) for (_, of), cell in told.items() if of is state)) == NEXT_STATES[state]


@pytest.mark.slow
def test_architecture_tells_the_states_that_events_lead_to_in_many_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[tuple[str, BucketState], set[BucketState]] = {}
    rows = {kind: name for name, kinds in _ROWS_OF_ARCHITECTURE.items() for kind in kinds}

    def noting(state: TrackerState, event: Event, now_ms: int) -> None:
        action = event.action if isinstance(event, ActionFailed) else event
        bucket = state.buckets.get(getattr(action, "serial", 0))
        before = None if bucket is None else bucket.state
        handle(state, event, now_ms)
        if bucket is not None and before is not None and bucket.state is not before:
            is_lost = isinstance(event, ActionFailed) and event.is_lost
            # An answer that shows a snapshot to be damaged is the end of it, too.
            is_given_up = before is BucketState.SEALED
            row = "alien, or lost" if is_lost or is_given_up else rows[type(action).__name__]
            seen.setdefault((row, before), set()).add(bucket.state)

    monkeypatch.setattr(table, "handle", noting)
    with asyncio.Runner() as runner:
        for seed in seeds():
            RandomLife(runner, seed).live(100)

    told = _told()
    assert {pair: states - _named(told[pair]) for pair, states in seen.items() if states - _named(told[pair])} == {}
    assert len(seen) >= _PAIRS_MET_MIN, sorted(map(str, seen))


def test_the_table_of_operations_says_of_each_in_each_state_what_a_bucket_does_or_why_nothing() -> None:
    assert OPERATIONS.keys() == {(event, state) for event in CallerEvent for state in BucketState}


def test_a_clear_leaves_a_bucket_alone_that_is_being_deleted_and_ends_a_merge() -> None:
    state = _state()
    removed = new_bucket(state, LedgerRange(1, 5), "", BucketState.DELETING)
    merging = new_bucket(state, LedgerRange(1, 5), "bucket_1_5", BucketState.MERGING)

    meet(state, CallerEvent.CLEARED, [removed, merging])

    assert removed.state is BucketState.DELETING
    assert merging.state is BucketState.GONE


@pytest.mark.parametrize("state_met", [BucketState.DELETING, BucketState.MERGING])
@pytest.mark.parametrize("event", [event for event in CallerEvent if event is not CallerEvent.CLEARED])
def test_an_operation_that_meets_a_bucket_without_a_range_is_a_defect(
    event: CallerEvent, state_met: BucketState
) -> None:
    state = _state()
    bucket = new_bucket(state, LedgerRange(1, 5), "bucket_1_5", state_met)

    with pytest.raises(AssertionError, match=f"{event.name} for bucket_1_5"):
        meet(state, event, [bucket])


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


MUTATING = {
    *("append", "clear", "discard", "extend", "heapify", "heappop", "heappush", "insert", "pop", "popitem", "remove"),
    *("setdefault", "sort", "update"),
}


class FieldChange(NamedTuple):
    """An assignment to a field, or a call that is one."""

    owner: str
    """The object, as it is written."""
    field: str
    line: int
    function: str
    """The innermost one around it."""


class _Changes(ast.NodeVisitor):
    """Collects the fields that a module assigns to, however that is written."""

    def __init__(self) -> None:
        self.found: list[FieldChange] = []
        self._function = ""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        outer, self._function = self._function, node.name
        self.generic_visit(node)
        self._function = outer

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if isinstance(node.ctx, ast.Store | ast.Del):
            self._add(node)
        self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if isinstance(node.ctx, ast.Store | ast.Del) and isinstance(node.value, ast.Attribute):
            # The contents of a field are changed.
            self._add(node.value)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = ast.unparse(node.func).rpartition(".")[2]
        if name in ("setattr", "__setattr__", "delattr", "__delattr__"):
            self.found.append(FieldChange("", "setattr", node.lineno, self._function))
        changed = node.func.value if isinstance(node.func, ast.Attribute) else None
        if name in ("heappush", "heappop", "heapify") and node.args:
            changed = node.args[0]
        if name in MUTATING and isinstance(changed, ast.Attribute):
            self._add(changed)
        self.generic_visit(node)

    def _add(self, node: ast.Attribute) -> None:
        self.found.append(FieldChange(ast.unparse(node.value), node.attr, node.lineno, self._function))


def _changes(source: str) -> list[FieldChange]:
    collected = _Changes()
    collected.visit(ast.parse(source))
    return collected.found


def _changes_the_state(change: FieldChange, module: str) -> bool:
    """Whether a change is of a bucket, or of a record that belongs to a state; a class may set up its own fields."""
    if change.field == "setattr":
        return True
    if change.function == "__init__" and change.owner == "self":
        return False
    if change.owner == "self":
        # Of the classes here, these alone are the state.
        return module in ("core/bucket.py", "core/state.py")
    # An object that a class has may be a bucket, or a state.
    owners = re.split(r"[.\[]", change.owner.removeprefix("self."))
    of_state = not {"state", "core", "_state", "_core", "_recovery"}.isdisjoint(owners)
    return of_state or (change.field in FIELDS and (module.startswith("core/") or change.field not in OTHERS_TOO))


def _offences(source: str, module: str) -> list[str]:
    return [
        f"{module}:{change.line}: {change.owner}.{change.field}"
        for change in _changes(source)
        if _changes_the_state(change, module)
    ]


def test_only_transitions_change_a_state() -> None:
    """The state between two lines can be known without reading another module.

    Writes that no source shows are found while the tests here run (`tests.helpers.one_writer`).
    """
    paths = [path for path in (ROOT / "tracker").rglob("*.py") if not path.is_relative_to(TRANSITIONS)]

    assert len(paths) > 40
    assert [
        one for path in paths for one in _offences(path.read_text(), path.relative_to(ROOT / "tracker").as_posix())
    ] == []


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("core/questions.py", "setattr(bucket, 'is_cached', False)"),
        ("core/questions.py", "object.__setattr__(bucket, 'is_cached', False)"),
        ("core/questions.py", "state.keys[1] = None"),
        ("core/questions.py", "del state.buckets[1]"),
        ("core/bucket.py", "self.state = None"),
        ("core/questions.py", "bucket.loaded_meanwhile.clear()"),
        ("core/state.py", "heapq.heappop(self.ending)"),
        ("core/load_queue.py", "one.state = None"),
        ("core/load_queue.py", "self._due[serial].load = None"),
        ("core/load_queue.py", "self._buckets[serial].overlap_ms = 5"),
        ("core/barriers.py", "self._recovery.are_unwanted = False"),
        ("core/circuit_breakers.py", "self._buckets[serial].work = None"),
        ("core/position_cache.py", "self._wanted[serial].is_cached = False"),
        ("shell/bucket_tracker.py", "self._core._state.unloaded_count = 3"),
        ("core/load_queue.py", "[one.is_cached, one.load] = None, None"),
        ("core/load_queue.py", "(one.is_cached, *one.parts) = ()"),
        ("core/load_queue.py", "for one.is_cached in (): pass"),
        ("core/load_queue.py", "with x as one.is_cached: pass"),
        ("core/load_queue.py", "[0 for one.is_cached in ()]"),
        ("core/tracker_core.py", "self._state.now_ms = 0"),
        ("core/tracker_core.py", "self._state.reports.untracked = {}"),
        ("shell/bucket_tracker.py", "bucket.unloaded_count += 1"),
    ],
)
def test_the_search_finds_each_way_to_change_a_state(module: str, line: str) -> None:
    assert len(_offences(f"def ask(self):\n    {line}", module)) >= 1


def test_the_search_finds_the_changes_of_the_transitions() -> None:
    found = [
        change
        for path in TRANSITIONS.glob("*.py")
        for change in _changes(path.read_text())
        if _changes_the_state(change, f"core/transitions/{path.name}")
    ]

    assert len(found) > 80
    assert {change.field for change in found} > {"state", "loaded_spans", "is_cached", "work", "merging_into", "now_ms"}


def _calls_on_a_state(source: str) -> set[str]:
    """Return the methods that are called on something that belongs to a state."""
    calls = (node.func for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    return {
        call.attr
        for call in calls
        if isinstance(call, ast.Attribute) and re.match(r"(self\._)?state\b", ast.unparse(call.value))
    }


@pytest.mark.parametrize("module", ["questions.py", "checks.py", "tracker_core.py"])
def test_questions_call_what_changes_nothing(module: str) -> None:
    """And heaps, which drop entries of the past when they are looked at (`first_unloaded`)."""
    source = (ROOT / "tracker" / "core" / module).read_text()

    assert _calls_on_a_state(source) <= PURE
    assert "clear" in _calls_on_a_state(source + "\nstate.buckets.clear()")
    assert "take_due" in _calls_on_a_state(source + "\nstate.timers.take_due(0)")
    assert "append" in _calls_on_a_state(source + "\nself._state.mutable.singles.entry_ids.append(1)")


def test_only_the_part_of_positions_asks_more_than_one_place_about_a_position() -> None:
    """Others put a bucket's positions into the cache, let go of them, and say which ranges overlap."""
    core = ROOT / "tracker" / "core"
    paths = [path for path in core.rglob("*.py") if path.parent.name != "positions" and path.name != "checks.py"]
    used = {call for path in paths for call in re.findall(r"\b(cached|overlapping)\.(\w+)", path.read_text())}

    assert {name for place, name in used if place == "cached"} == {"count", "forget", "has_any", "put", "take"}
    assert {name for place, name in used if place == "overlapping"} == {"copy", "ranges", "set_range"}


OPERATING_METHODS = {
    *("add_message", "add_messages", "clear", "handle", "note_acknowledged", "pass_through", "plan", "pop_due"),
    *("recover", "seal", "set_tick_time", "take_losses", "take_untracked", "take_untracked_ranges", "trim", "want"),
}
"""The methods of a core that change it; all others ask."""


def _methods_that_reach_a_transition(source: str) -> set[str]:
    """Return the public methods of the class in a module that call a transition, by themselves or by one another."""
    tree = ast.parse(source)
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    transitions = {
        name.asname or name.name for node in imports if "transitions" in str(node.module) for name in node.names
    }
    methods = {one.name: one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef) and one.name != "__init__"}
    names = {
        name: {node.id for node in ast.walk(method) if isinstance(node, ast.Name)}
        | {node.attr for node in ast.walk(method) if isinstance(node, ast.Attribute)}
        for name, method in methods.items()
    }
    reaching = transitions
    while more := {name for name, used in names.items() if used & reaching} - reaching:
        reaching = reaching | more
    return {name for name in reaching & methods.keys() if not name.startswith("_")}


def test_questions_call_no_transition() -> None:
    """Nor take what was added one by one over, which is one."""
    source = (ROOT / "tracker" / "core" / "tracker_core.py").read_text()

    assert _methods_that_reach_a_transition(source) == OPERATING_METHODS
    assert ".transitions" not in (ROOT / "tracker" / "core" / "questions.py").read_text()
    asking = source + "\n    def contains_message(self):\n        return self._whole().positions\n"
    assert _methods_that_reach_a_transition(asking) == OPERATING_METHODS | {"contains_message"}


@pytest.mark.parametrize("record", [*RECORDS, *PARTS])
def test_a_change_that_no_transition_makes_is_found_while_it_runs(record: type) -> None:
    scope: dict[str, Any] = {"__name__": "tracker.core.questions"}
    exec("def ask(one):\n    one.anything = 1", scope)

    with pytest.raises(AssertionError, match=rf"ask assigns to {record.__name__}\.anything"):
        scope["ask"](record.__new__(record))


def test_a_part_that_changes_itself_does_so_within_a_transition() -> None:
    scope: dict[str, Any] = {"__name__": "tracker.core.questions"}
    exec("def ask(state):\n    state.timers.wake(0)", scope)

    with pytest.raises(AssertionError, match=r"Timers\.earliest_ms outside a transition"):
        scope["ask"](_state())
