"""The selection of subscriptions by the names that an operator writes: of topics, of subscriptions, or of both."""

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from managed_ledger.cursors.cursor_properties import CursorName
from managed_ledger.names import find_cursor, find_topic


class Selection(NamedTuple):
    """A selection of subscriptions by the log's own names; None stands for any."""

    topics: frozenset[str] | None = None
    cursors: frozenset[str] | None = None

    def has(self, name: CursorName) -> bool:
        """Whether a subscription is selected."""
        return (self.topics is None or name.topic in self.topics) and (
            self.cursors is None or name.cursor in self.cursors
        )

    def of(self, names: Iterable[CursorName]) -> list[CursorName]:
        """Return the selected ones."""
        return list(filter(self.has, names))


def select(
    names: Collection[CursorName],
    all_topics: Collection[str],
    topics: Sequence[str] | None,
    cursors: Sequence[str] | None,
) -> Selection:
    """Return the cursors that these names of topics and subscriptions select.

    Args:
        names: All cursors.
        all_topics: All topics, also those without a cursor.
        topics: Only these, by their short or whole names; None for all.
        cursors: Only subscriptions of these names; None for all.

    Raises:
        NameNotFoundError: One of the names matches nothing.
    """
    wanted = None if topics is None else frozenset(find_topic(topic, all_topics) for topic in topics)
    if cursors is None:
        return Selection(wanted)
    there = {name.cursor for name in Selection(wanted).of(names)}
    where = "" if wanted is None else f" of {', '.join(sorted(wanted))}"
    return Selection(wanted, frozenset(find_cursor(cursor, there, where) for cursor in cursors))
