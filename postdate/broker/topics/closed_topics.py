"""What is known of a closed topic, without opening it: a few numbers for each subscription, stored beside the log.

They are of the moment when the topic was closed, so a backlog that nobody asks for stays visible, also after a restart.
What came due since then is told as far as its first and last times say. After a kill, a topic that was open has the
numbers of the time before.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from postdate.broker.topics.figures import (
    NOTHING_WAITS,
    SOON_MS,
    DueSoon,
    ScheduledCounts,
    SubscriptionSnapshot,
    TopicCounts,
    TopicSnapshot,
)
from postdate.broker.topics.policies import RecordStore, remove_record
from postdate.broker.topics.topic_name import TopicName

_RECORD_PREFIX: Final = "closedTopic "


class ClosedSubscription(NamedTuple):
    """One subscription of a closed topic.

    Attributes:
        name: Its name.
        backlog: Entries that are not acknowledged.
        delayed: Messages whose time has not come, None where that is not known.
        overdue: Messages that are due; None likewise.
        next_deliver_at_ms: When the next one comes due; 0 for never, None where that is not known.
        last_deliver_at_ms: When the last one comes due, at the latest; 0 for never.
        paused_since_ms: When its deliveries began to be held; False for never. True where an earlier version has noted
            that they are, and not when.
    """

    name: str
    backlog: int
    delayed: int | None
    overdue: int | None
    next_deliver_at_ms: int | None
    last_deliver_at_ms: int
    paused_since_ms: int | bool

    @classmethod
    def of(cls, figures: SubscriptionSnapshot) -> "ClosedSubscription":
        """Return the numbers of a subscription whose topic is being closed; no consumer has anything in hand then."""
        counts = figures.scheduled
        return cls(
            figures.name,
            figures.backlog,
            None if counts is None else counts.delayed,
            None if counts is None else counts.overdue + counts.in_hand,
            figures.next_deliver_at_ms,
            figures.last_deliver_at_ms,
            figures.is_paused if figures.paused_since_ms is None else figures.paused_since_ms,
        )

    def figures(self, now_ms: int) -> SubscriptionSnapshot:
        """Return its figures, with what has come due: the first message at its time, and all with the last one."""
        next_at, last_at = self.next_deliver_at_ms, self.last_deliver_at_ms
        counts: ScheduledCounts | None = None
        if self.delayed is not None and self.overdue is not None:
            due = 0
            if last_at <= now_ms:
                due = self.delayed
            elif next_at and next_at <= now_ms and not self.overdue:
                due = min(1, self.delayed)
            counts = ScheduledCounts(self.delayed - due, self.overdue + due)
        if last_at <= now_ms:
            next_at = last_at = 0
        elif next_at and next_at <= now_ms:
            next_at = None
        delayed = 0 if counts is None else counts.delayed
        return SubscriptionSnapshot(
            name=self.name,
            backlog=self.backlog,
            delayed=delayed,
            scheduled=counts,
            next_deliver_at_ms=next_at,
            last_deliver_at_ms=last_at,
            is_paused=bool(self.paused_since_ms),
            paused_since_ms=None if isinstance(self.paused_since_ms, bool) else self.paused_since_ms,
            held_by_pause=max(0, self.backlog - delayed) if self.paused_since_ms else 0,
        )

    def counts(self, now_ms: int) -> TopicCounts | None:
        """Return its counts; what comes due soon as if its messages were spread evenly over their time."""
        counts = self.figures(now_ms).scheduled
        if counts is None:
            return None
        first_ms, last_ms = max(self.next_deliver_at_ms or 0, now_ms), self.last_deliver_at_ms

        def due_by(end_ms: int) -> int:
            if end_ms < first_ms or last_ms <= end_ms:
                return 0 if end_ms < first_ms else counts.delayed
            return max(1, counts.delayed * (end_ms - first_ms) // (last_ms - first_ms))

        return TopicCounts(
            1, counts.delayed, counts.overdue, DueSoon(*(due_by(now_ms + ms) for ms in SOON_MS)), counts.delayed > 1
        )


class ClosedTopic(NamedTuple):
    """One closed topic."""

    storage_size_bytes: int
    subscriptions: tuple[ClosedSubscription, ...]

    @property
    def has_backlog(self) -> bool:
        """Whether a subscription has unacknowledged entries."""
        return any(one.backlog for one in self.subscriptions)

    def counts(self, now_ms: int) -> TopicCounts | None:
        """Return its counts, those of the subscription that waits for the most; None where one is not known."""
        found = [one.counts(now_ms) for one in self.subscriptions]
        known = [one for one in found if one is not None]
        return max(known, key=lambda one: one.delayed + one.overdue, default=NOTHING_WAITS) if known == found else None


class ClosedTopics:
    """The numbers of all topics that were closed, by name; those of an open topic are old.

    Args:
        store: The storage of the records.
    """

    def __init__(self, store: RecordStore) -> None:
        self._store = store

    def of(self, name: TopicName | str) -> ClosedTopic | None:
        """Return the numbers of a topic; None where it was never closed in order."""
        value = self._store.records.get(f"{_RECORD_PREFIX}{name}")
        if value is None:
            return None
        size_bytes, subscriptions = json.loads(value)
        return ClosedTopic(size_bytes, tuple(ClosedSubscription(*one) for one in subscriptions))

    async def put(self, figures: TopicSnapshot) -> None:
        """Store the numbers of a topic that is about to be closed.

        Raises:
            LedgerWriteError: They could not be stored, and are as before.
        """
        closed = ClosedTopic(figures.storage_size_bytes, tuple(map(ClosedSubscription.of, figures.subscriptions)))
        name, value = f"{_RECORD_PREFIX}{figures.name}", json.dumps(closed, separators=(",", ":")).encode()
        if self._store.records.get(name) != value:
            await self._store.put_record(name, value)

    async def remove(self, name: TopicName) -> None:
        """Remove the numbers of a topic that is being deleted.

        Raises:
            LedgerWriteError: They could not be removed.
        """
        await remove_record(self._store, f"{_RECORD_PREFIX}{name}")

    def figures(self, names: Iterable[str], now_ms: int) -> Iterator[TopicSnapshot]:
        """Give the figures of these topics, one by one; nothing for one without numbers."""
        for name in names:
            closed = self.of(name)
            if closed is not None:
                yield TopicSnapshot(
                    name=name,
                    namespace=TopicName.parse(name).namespace_name,
                    producer_count=0,
                    messages_in_total=0,
                    bytes_in_total=0,
                    storage_size_bytes=closed.storage_size_bytes,
                    counts=closed.counts(now_ms),
                    subscriptions=[one.figures(now_ms) for one in closed.subscriptions],
                )
