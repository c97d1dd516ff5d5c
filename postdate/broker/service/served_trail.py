"""The trails of all open bundles, as one: a change of a topic is kept beside it, and moves with it."""

import heapq
from collections.abc import Callable, Iterator, Mapping

from managed_ledger.bundles import WHOLE, BundleRange
from postdate.broker.admin.trail import Trail, TrailBook, TrailEntry
from postdate.broker.service.bundle import Bundle
from postdate.broker.topics.topic_name import TopicName


class ServedTrail(TrailBook):
    """Who changed what of a service.

    Args:
        bundles: The open bundles, by range.
        range_of: The bundle of a topic.
        log_only: Takes what no open bundle can keep.
    """

    def __init__(
        self,
        bundles: Mapping[BundleRange, Bundle],
        range_of: Callable[[TopicName], BundleRange],
        log_only: Trail,
    ) -> None:
        self._bundles = bundles
        self._range_of = range_of
        self._log_only = log_only

    def newest_first(self) -> Iterator[TrailEntry]:
        """Give the entries that are kept, the last change first."""
        trails = [bundle.trail.newest_first() for bundle in self._bundles.values()]
        return heapq.merge(*trails, key=lambda one: one.time_ms, reverse=True)

    def add(
        self,
        *,
        role: str | None,
        address: str,
        action: str,
        topic: str,
        subscription: str | None,
        selection: str,
        count: int | None,
        outcome: str = "done",
    ) -> None:
        """Record a change; the arguments are the fields of an entry."""
        self._trail_of(topic).add(
            role=role,
            address=address,
            action=action,
            topic=topic,
            subscription=subscription,
            selection=selection,
            count=count,
            outcome=outcome,
        )

    def _trail_of(self, topic: str) -> Trail:
        """Return the trail of a topic; what is of no topic, or of one that has moved, is kept by the first bundle."""
        found = self._bundles.get(self._range_of(TopicName.parse(topic))) if topic.count("/") > 1 else None
        found = found or self._bundles.get(min(self._bundles, default=WHOLE))
        return self._log_only if found is None else found.trail
