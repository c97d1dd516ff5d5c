"""Positions of buckets whose snapshot is not durable, by bucket and by ledger.

A storage that is slower than the adds may leave a thousand buckets unsealed. So a question about one position looks at
the buckets of its ledger alone, and the number of all positions is kept, and counted again when some are taken.
"""

from collections.abc import Mapping

from tracker.columns.position_set import PositionSet


class UnsealedPositions:
    """The positions of each of these buckets, by serial.

    A set that `of_ledger` or `by_serial` gives may be changed, with `recount` after it. It takes no ledger in
    that it did not have.
    """

    __slots__ = ("_buckets", "_by_ledger", "_ledger_ids", "count")

    def __init__(self) -> None:
        self._buckets: dict[int, PositionSet] = {}
        self._ledger_ids: dict[int, tuple[int, ...]] = {}
        """The ledgers that a bucket had when it came, by its serial."""
        self._by_ledger: dict[int, dict[int, PositionSet]] = {}
        """Of each of these ledgers, the sets of its buckets by serial."""
        self.count = 0
        """How many positions there are; one in two buckets counts twice."""

    @property
    def by_serial(self) -> Mapping[int, PositionSet]:
        """The sets of the buckets; none is added or taken out here."""
        return self._buckets

    def of_ledger(self, ledger_id: int) -> list[PositionSet]:
        """Return the sets that may have positions of a ledger; O(these)."""
        sets = self._by_ledger.get(ledger_id)
        return list(sets.values()) if sets else []

    def put(self, serial: int, positions: PositionSet) -> None:
        """Take a bucket's positions."""
        self._buckets[serial] = positions
        self._ledger_ids[serial] = tuple(positions.bitmaps)
        for ledger_id in positions.bitmaps:
            self._by_ledger.setdefault(ledger_id, {})[serial] = positions
        self.count += positions.count

    def pop(self, serial: int) -> PositionSet:
        """Let go of a bucket's positions, and return them."""
        positions = self._buckets.pop(serial)
        for ledger_id in self._ledger_ids.pop(serial):
            sets = self._by_ledger[ledger_id]
            del sets[serial]
            if not sets:
                del self._by_ledger[ledger_id]
        self.count -= positions.count
        return positions

    def recount(self) -> None:
        """Count again, after sets were changed; O(buckets)."""
        self.count = sum([positions.count for positions in self._buckets.values()])

    def clear(self) -> None:
        """Let go of all buckets."""
        self._buckets.clear()
        self._ledger_ids.clear()
        self._by_ledger.clear()
        self.count = 0

    def check(self) -> None:
        """Assert that the number and the sets of each ledger are those of the buckets."""
        assert self.count == sum(positions.count for positions in self._buckets.values())
        assert self._ledger_ids.keys() == self._buckets.keys()
        for serial, positions in self._buckets.items():
            positions.check()
            assert positions.bitmaps.keys() <= set(self._ledger_ids[serial])
        found = {(ledger_id, serial) for ledger_id, sets in self._by_ledger.items() for serial in sets}
        assert found == {(ledger_id, serial) for serial, ids in self._ledger_ids.items() for ledger_id in ids}
