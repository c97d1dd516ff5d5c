"""A cursor in memory: all that a tracker needs of one, for examples, tests and readers that do not outlive the process.

A program whose index is to survive a restart keeps `properties` where they survive too, and gives them to the next
cursor: they name the snapshots.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Final

from pyroaring import BitMap

from managed_ledger.positions.position import Position
from tracker.columns.offers import check_integers

NOTHING_ACKNOWLEDGED: Final = Position(-1, -1)


class MemoryCursor:
    """A `TrackedCursor` whose acknowledgements and properties are in memory.

    >>> cursor = MemoryCursor()
    >>> cursor.acknowledge(7, 0, 2)
    >>> list(cursor.acknowledged_in(7))
    [0, 2]
    >>> cursor.mark_delete_position = Position(7, 1)
    >>> list(cursor.acknowledged_in(7))
    [0, 1, 2]

    Args:
        mark_delete_position: Everything up to here is acknowledged.
        properties: The properties that an earlier cursor of the same name had.
    """

    def __init__(
        self, *, mark_delete_position: Position = NOTHING_ACKNOWLEDGED, properties: Mapping[str, str] | None = None
    ) -> None:
        self.properties: dict[str, str] = dict(properties or {})
        self.acknowledged: dict[int, BitMap] = {}
        """Entries that were acknowledged one by one, by ledger."""
        self._mark_delete_position = mark_delete_position
        self._listeners: list[Callable[[Position], None]] = []

    @property
    def mark_delete_position(self) -> Position:
        """Everything up to here is acknowledged; setting it tells the listeners."""
        return self._mark_delete_position

    @mark_delete_position.setter
    def mark_delete_position(self, position: Position) -> None:
        check_integers(*position)
        self._mark_delete_position = position
        for listener in tuple(self._listeners):
            listener(position)

    def acknowledge(self, ledger_id: int, *entry_ids: int) -> None:
        """Acknowledge entries of a ledger; the mark-delete position stays where it is."""
        self.acknowledged.setdefault(ledger_id, BitMap()).update(entry_ids)

    def acknowledged_in(self, ledger_id: int) -> BitMap:
        """Return the acknowledged entries of a ledger: those one by one, and those that mark-delete has passed."""
        one_by_one = self.acknowledged.get(ledger_id, BitMap())
        if ledger_id != self._mark_delete_position.ledger_id:
            return one_by_one
        return one_by_one | BitMap(range(self._mark_delete_position.entry_id + 1))

    async def update_properties(self, *, put: Mapping[str, str] = {}, remove: Collection[str] = ()) -> None:
        """Put and remove properties in one step."""
        self.properties.update(put)
        for key in remove:
            self.properties.pop(key, None)

    def add_listener(self, on_mark_delete_moved: Callable[[Position], None]) -> None:
        """Call a function with the new mark-delete position each time that it has moved."""
        self._listeners.append(on_mark_delete_moved)

    def remove_listener(self, on_mark_delete_moved: Callable[[Position], None]) -> None:
        """Call that function no more."""
        self._listeners.remove(on_mark_delete_moved)
