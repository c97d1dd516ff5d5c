"""Promises of the selectors beyond the golden vectors: worked examples, and keys that move with a consumer."""

from typing import NamedTuple

import pytest

from dispatcher.core.selectors.assignment import NO_OWNER
from dispatcher.core.selectors.auto_split import HashRangeAutoSplitStickyKeyConsumerSelector
from dispatcher.core.selectors.consistent_hashing import ConsistentHashingStickyKeyConsumerSelector
from dispatcher.core.selectors.selector import StickyKeyConsumerSelector
from dispatcher.core.selectors.sticky_ranges import HashRangeExclusiveStickyKeyConsumerSelector
from dispatcher.errors import ConsumerAssignError, RangeConflictError
from dispatcher.slots import CONSISTENT_HASHING_RANGE, sticky_hash


class _RangeMember(NamedTuple):
    index: int
    name: str
    ranges: tuple[tuple[int, int], ...] = ()


def _filled(selector: StickyKeyConsumerSelector, names: list[str]) -> list[_RangeMember]:
    members = [_RangeMember(index, name) for index, name in enumerate(names)]
    for member in members:
        selector.add_consumer(member)
    return members


def _ranges(selector: StickyKeyConsumerSelector, members: list[_RangeMember]) -> list[tuple[int, int, str]]:
    """Return first and last slot and the owner's name of every range, in order."""
    return sorted((*span, member.name) for member in members for span in selector.ranges_of(member))


def test_a_ring_with_three_points_has_the_published_ranges() -> None:
    selector = ConsistentHashingStickyKeyConsumerSelector(3)
    one, two, three = _filled(selector, ["consumer1", "consumer2", "consumer3"])

    assert selector.ranges_of(one) == [(14359, 18366), (29991, 39817), (52980, 60442)]
    assert selector.ranges_of(two) == [(1, 6668), (39818, 52979), (60443, 63679), (65184, 65535)]
    assert selector.ranges_of(three) == [(6669, 14358), (18367, 29990), (63680, 65183)]


def test_a_change_on_the_ring_moves_only_slots_of_who_comes_or_goes() -> None:
    selector = ConsistentHashingStickyKeyConsumerSelector()
    members = _filled(selector, [f"c{number % 7}" for number in range(20)])
    for member in (members[3], members[11]):
        before = selector.owners.table()
        selector.remove_consumer(member)
        assert set(before[before != selector.owners.table()].tolist()) == {member.index}

        before = selector.owners.table()
        selector.add_consumer(member)
        assert set(selector.owners.table()[before != selector.owners.table()].tolist()) <= {member.index}


def test_all_leave_in_any_order_and_come_back_to_the_same_slots() -> None:
    selector = ConsistentHashingStickyKeyConsumerSelector()
    members = _filled(selector, [f"c{number}" for number in range(10)])
    before = selector.owners.table()
    for member in sorted(members, key=lambda member: sticky_hash(member.name.encode())):
        selector.remove_consumer(member)
    assert (selector.owners.table() == NO_OWNER).all()

    for member in members:
        selector.add_consumer(member)

    assert (selector.owners.table() == before).all()


def test_a_member_without_a_point_of_its_own_gets_slots_when_it_is_promoted() -> None:
    selector = ConsistentHashingStickyKeyConsumerSelector(1)
    first, second = (_RangeMember(index, name) for index, name in enumerate(_two_names_with_one_point()))
    selector.add_consumer(first)
    selector.add_consumer(second)
    assert selector.ranges_of(second) == []

    selector.remove_consumer(first)

    assert selector.ranges_of(second) == [(1, 65535)]


def _two_names_with_one_point() -> tuple[str, str]:
    name_of: dict[int, str] = {}
    for number in range(65_536):
        name = f"c{number}"
        point = CONSISTENT_HASHING_RANGE.slot(sticky_hash(b"%s\0000\0000" % name.encode()))
        if point in name_of:
            return name_of[point], name
        name_of[point] = name
    raise AssertionError("there are fewer points than names")


def test_auto_split_has_the_published_sizes() -> None:
    """The story of PR 6791: ten join, and leave one after the other."""
    selector = HashRangeAutoSplitStickyKeyConsumerSelector()
    members = _filled(selector, [f"c{number}" for number in range(1, 11)])
    bounds = [4096, 8192, 12288, 16384, 24576, 32768, 40960, 49152, 57344, 65536]
    ranges = _ranges(selector, members)
    assert [last for _, last, _ in ranges] == bounds
    assert [name for _, _, name in ranges] == [
        "c9",
        "c5",
        "c10",
        "c3",
        "c6",
        "c2",
        "c7",
        "c4",
        "c8",
        "c1",
    ]

    sizes_after = {}
    for name in ["c2", "c3", "c1", "c4", "c5", "c6", "c7", "c8", "c9", "c10"]:
        selector.remove_consumer(next(member for member in members if member.name == name))
        ranges = _ranges(selector, members)
        uppers = [last for _, last, _ in ranges]
        sizes_after[name] = {
            name: upper - lower for (_, _, name), lower, upper in zip(ranges, [0, *uppers], uppers, strict=False)
        }

    assert sizes_after["c3"] == {
        "c1": 8192, "c10": 4096, "c4": 8192, "c5": 4096, "c6": 12288, "c7": 16384, "c8": 8192, "c9": 4096
    }  # fmt: skip
    assert sizes_after["c1"] == {"c10": 4096, "c4": 8192, "c5": 4096, "c6": 12288, "c7": 16384, "c8": 16384, "c9": 4096}
    assert sizes_after["c6"] == {"c10": 8192, "c7": 28672, "c8": 24576, "c9": 4096}
    assert sizes_after["c8"] == {"c10": 61440, "c9": 4096}
    assert sizes_after["c10"] == {}


@pytest.mark.parametrize("size", [2, 4, 8])
def test_auto_split_refuses_who_finds_no_range(size: int) -> None:
    selector = HashRangeAutoSplitStickyKeyConsumerSelector(size)
    _filled(selector, [f"c{number}" for number in range(size)])
    before = selector.owners

    with pytest.raises(ConsumerAssignError, match="no more range"):
        selector.add_consumer(_RangeMember(99, "one too many"))

    assert selector.owners is before


@pytest.mark.parametrize("size", [0, 1, 3, 65_535])
def test_auto_split_wants_a_power_of_two(size: int) -> None:
    with pytest.raises(ValueError, match="power of two"):
        HashRangeAutoSplitStickyKeyConsumerSelector(size)


@pytest.mark.parametrize(
    ("ranges", "reason"),
    [((), "names no hash range"), (((5, 4),), "starts after its end"), (((0, 10), (10, 20)), "own ranges overlap")],
)
def test_sticky_ranges_are_validated(ranges: tuple[tuple[int, int], ...], reason: str) -> None:
    selector = HashRangeExclusiveStickyKeyConsumerSelector()

    with pytest.raises(ConsumerAssignError, match=reason):
        selector.add_consumer(_RangeMember(0, "c", ranges))


def test_a_sticky_range_that_is_taken_names_who_has_it() -> None:
    selector = HashRangeExclusiveStickyKeyConsumerSelector()
    selector.add_consumer(_RangeMember(0, "first", ((0, 99), (400, 65_535))))
    selector.add_consumer(_RangeMember(1, "between", ((100, 399),)))

    with pytest.raises(RangeConflictError, match="overlaps one of consumer 'between'") as refused:
        selector.add_consumer(_RangeMember(2, "late", ((399, 399),)))

    assert refused.value.consumer_name == "between"


@pytest.mark.parametrize("unreachable", [(-5, -2), (-1, -1), (65_536, 80_000)])
def test_a_sticky_range_that_no_slot_is_in_takes_nothing_from_others(unreachable: tuple[int, int]) -> None:
    selector = HashRangeExclusiveStickyKeyConsumerSelector()
    selector.add_consumer(_RangeMember(0, "everything", ((0, 65_535),)))
    selector.add_consumer(_RangeMember(1, "nothing", (unreachable,)))

    assert (selector.owners.table()[:65_536] == 0).all()


def test_slots_between_two_ranges_of_one_member_are_not_its_own() -> None:
    selector = HashRangeExclusiveStickyKeyConsumerSelector()
    selector.add_consumer(_RangeMember(0, "c", ((10, 20), (30, 40))))

    assert [selector.owners[slot] for slot in (9, 10, 20, 21, 29, 30, 40, 41)] == [-1, 0, 0, -1, -1, 0, 0, -1]
