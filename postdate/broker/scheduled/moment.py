"""The state of a topic's log and subscriptions at one moment, so that a long look sees each message once.

A look goes through the ledgers one after the other, and lets others run in between. Meanwhile messages are moved: read
as they are when their ledger's turn comes, one could be seen as the old one and as its copy, or as neither. A message
that is being moved is the old one until its copy is durable; then it is the copy, from the same turn of the loop on.
"""

from collections.abc import Sequence

from pyroaring import BitMap

from managed_ledger.positions.position import Position
from managed_ledger.replacing import Entries
from postdate.broker.topics.delayed_range import delays_through
from postdate.broker.topics.subscription import Subscription
from postdate.broker.topics.topic import Topic


class Moment:
    """The state of a topic for some of its subscriptions when this is made; it takes about a bit an entry.

    Args:
        topic: The topic.
        subscriptions: The subscriptions.
    """

    def __init__(self, topic: Topic, subscriptions: Sequence[Subscription]) -> None:
        self.ledgers = topic.ledger.ledgers()
        self.first_ledger_id = {one: one.cursor.next_unacknowledged_position.ledger_id for one in subscriptions}
        self._entries = {one.ledger_id: one.entries for one in self.ledgers}
        self._delays_through = {one: delays_through(one.cursor, topic.delayed_delivery) for one in subscriptions}
        self._acknowledged = {one: self._acknowledged_of(one) for one in subscriptions}
        self._in_hand = {one: one.entries_in_hand() for one in subscriptions}

    @property
    def has_in_hand(self) -> bool:
        """Whether a consumer had an entry in hand."""
        return any(self._in_hand.values())

    def entries_of(self, ledger_id: int) -> int:
        """Return how many durable entries a ledger had."""
        return self._entries.get(ledger_id, 0)

    def is_acknowledged(self, subscription: Subscription, position: Position) -> bool:
        """Whether a subscription had acknowledged an entry."""
        ledger_id, entry_id = position
        if ledger_id < self.first_ledger_id[subscription]:
            return True
        return entry_id in self._acknowledged[subscription].get(ledger_id, ())

    def done_in(self, subscription: Subscription, ledger_id: int) -> BitMap:
        """Return which entries of a ledger a subscription had acknowledged or does not delay."""
        entries = self.entries_of(ledger_id)
        if ledger_id < self.first_ledger_id[subscription]:
            return BitMap(range(entries))
        done = self._acknowledged[subscription].get(ledger_id, _NOTHING)
        through = self._delays_through[subscription]
        if ledger_id < through.ledger_id:
            return done
        first = max(0, through.entry_id + 1) if ledger_id == through.ledger_id else 0
        return done | BitMap(range(first, entries))

    def in_hand_in(self, subscription: Subscription, ledger_id: int) -> BitMap:
        """Return which entries of a ledger consumers of a subscription had in hand."""
        return self._in_hand[subscription].get(ledger_id, _NOTHING)

    def in_any_hand(self) -> Entries:
        """Return the entries that a consumer of some subscription had in hand."""
        found: Entries = {}
        for of_one in self._in_hand.values():
            for ledger_id, entry_ids in of_one.items():
                found[ledger_id] = found.get(ledger_id, _NOTHING) | entry_ids
        return found

    def _acknowledged_of(self, subscription: Subscription) -> Entries:
        first = self.first_ledger_id[subscription]
        return {
            one.ledger_id: subscription.cursor.durably_acknowledged_in(one.ledger_id)
            for one in self.ledgers
            if one.ledger_id >= first and one.entries
        }


_NOTHING = BitMap()
