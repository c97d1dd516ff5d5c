"""Slots and assignments equal those of Pulsar 4.2.4's own classes, step by step."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from dispatcher.core.selectors.assignment import Assignment
from dispatcher.core.selectors.auto_split import HashRangeAutoSplitStickyKeyConsumerSelector
from dispatcher.core.selectors.consistent_hashing import ConsistentHashingStickyKeyConsumerSelector
from dispatcher.core.selectors.selector import StickyKeyConsumerSelector
from dispatcher.slots import CONSISTENT_HASHING_RANGE, FULL_RANGE, sticky_hash

_FOLDER = Path(__file__).parents[2] / "golden" / "key_shared"
_SLOTS: list[dict[str, Any]] = json.loads((_FOLDER / "slots.json").read_text())["slots"]
_STORIES: list[dict[str, Any]] = json.loads((_FOLDER / "selectors.json").read_text())["stories"]


class _GoldenMember(NamedTuple):
    index: int
    name: str
    ranges: tuple[tuple[int, int], ...] = ()


@pytest.mark.parametrize("vector", _SLOTS, ids=lambda vector: vector["key_hex"][:16] or "empty")
def test_hash_and_slots_equal_pulsars(vector: dict[str, Any]) -> None:
    key_hash = sticky_hash(bytes.fromhex(vector["key_hex"]))

    assert key_hash == vector["murmur3_31bit"]
    assert CONSISTENT_HASHING_RANGE.slot(key_hash) == vector["consistent_hashing_slot"]
    assert FULL_RANGE.slot(key_hash) == vector["auto_split_slot"]
    assert FULL_RANGE.slot(key_hash) == vector["sticky_slot"]


@pytest.mark.parametrize("number", range(len(_STORIES)))
def test_every_step_of_a_story_assigns_as_pulsar_does(number: int) -> None:
    """Ranges, what a change impacts, and the owners of twelve keys, after every join and leave."""
    story = _STORIES[number]
    selector = _selector(story)
    members: dict[str, _GoldenMember] = {}
    for step in story["steps"]:
        before = selector.owners
        touched = _apply(selector, members, step)
        ids = {member.index: label for label, member in (members | touched).items()}

        ranges = {label: _lists(selector.ranges_of(member)) for label, member in members.items()}
        assert {label: found for label, found in ranges.items() if found} == _nonempty(step["ranges"])

        impacted = _impacted_ranges(before, selector.owners, ids)
        assert {(ids[index], kind): _lists(found) for (index, kind), found in impacted.items()} == {
            (change["consumer"], change["change"]): change["ranges"] for change in step["impacted"]
        }

        slots = [selector.hash_range.slot(sticky_hash(b"key-%d" % key)) for key in range(12)]
        owners = [ids.get(selector.owners[slot]) for slot in slots]
        assert owners == step["owners_of_key_0_to_11"]


def _impacted_ranges(
    before: Assignment, after: Assignment, indices: Iterable[int]
) -> dict[tuple[int, str], list[tuple[int, int]]]:
    """Return the slots that each member lost and gained, as Pulsar reports them: by member and "remove" or "add"."""
    tables = {"remove": before.table(), "add": after.table()}
    changed = tables["remove"] != tables["add"]
    impacted = {(index, kind): _runs(changed & (table == index)) for index in indices for kind, table in tables.items()}
    return {key: ranges for key, ranges in impacted.items() if ranges}


def _runs(mask: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Return the inclusive runs of true values."""
    edges = np.flatnonzero(np.diff(mask.astype(np.int8), prepend=0, append=0))
    return [(int(first), int(end) - 1) for first, end in edges.reshape(-1, 2)]


def _selector(story: dict[str, Any]) -> StickyKeyConsumerSelector:
    if story["selector"] == "auto_split":
        return HashRangeAutoSplitStickyKeyConsumerSelector()
    return ConsistentHashingStickyKeyConsumerSelector(story["points"])


def _apply(
    selector: StickyKeyConsumerSelector, members: dict[str, _GoldenMember], step: dict[str, Any]
) -> dict[str, _GoldenMember]:
    if "add" in step:
        label = step["add"]
        name, number = label.split("#")
        members[label] = _GoldenMember(int(number), name)
        selector.add_consumer(members[label])
        return {}
    label = step["remove"]
    removed = members.pop(label)
    selector.remove_consumer(removed)
    return {label: removed}


def _lists(ranges: list[tuple[int, int]]) -> list[list[int]]:
    return [list(found) for found in ranges]


def _nonempty(ranges: dict[str, list[list[int]]]) -> dict[str, list[list[int]]]:
    return {label: found for label, found in ranges.items() if found}
