"""The cursor of a shared index: its own properties, and the positions that all subscriptions have acknowledged.

Acknowledgements are computed at each question from the subscriptions of that moment, so a subscription that comes, goes
or seeks does not have to be reported. Only the listeners need a call (`refresh`).
"""

from collections.abc import Callable, Collection, Mapping

from pyroaring import BitMap

from managed_ledger.positions.position import Position
from tracker.delayed_delivery_tracker import TrackedCursor


class SharedCursor:
    """The cursor of a shared index: its own properties, and what all subscriptions have acknowledged.

    Args:
        own: Keeps the properties.
        subscriptions: Gives the cursors of all subscriptions there are now, with or without a dispatcher.
    """

    def __init__(self, own: TrackedCursor, subscriptions: Callable[[], Collection[TrackedCursor]]) -> None:
        self._own = own
        self._subscriptions = subscriptions
        self._listeners: list[Callable[[Position], None]] = []
        self._told = self.mark_delete_position

    @property
    def mark_delete_position(self) -> Position:
        """Everything up to here is acknowledged by every subscription."""
        positions = [cursor.mark_delete_position for cursor in self._subscriptions()]
        return min(positions, default=self._own.mark_delete_position)

    @property
    def properties(self) -> Mapping[str, str]:
        """The index's own properties."""
        return self._own.properties

    def acknowledged_in(self, ledger_id: int) -> BitMap:
        """Return what every subscription has acknowledged of a ledger."""
        bitmaps = [cursor.acknowledged_in(ledger_id) for cursor in self._subscriptions()]
        return BitMap.intersection(*bitmaps) if bitmaps else self._own.acknowledged_in(ledger_id)

    async def update_properties(self, *, put: Mapping[str, str] = {}, remove: Collection[str] = ()) -> None:
        """Change the index's own properties."""
        await self._own.update_properties(put=put, remove=remove)

    def add_listener(self, on_mark_delete_moved: Callable[[Position], None]) -> None:
        """Add a listener, which `refresh` calls."""
        self._listeners.append(on_mark_delete_moved)

    def remove_listener(self, on_mark_delete_moved: Callable[[Position], None]) -> None:
        self._listeners.remove(on_mark_delete_moved)

    def refresh(self) -> None:
        """Tell the listeners when the slowest subscription has moved, or another one is the slowest."""
        position = self.mark_delete_position
        if position != self._told:
            self._told = position
            for listener in tuple(self._listeners):
                listener(position)
