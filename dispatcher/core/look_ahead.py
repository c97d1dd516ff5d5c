"""How many entries may be read ahead and wait: Pulsar's look-ahead limits, and the rows that may be parked beyond."""

from collections.abc import Sized

from dispatcher.config import DispatcherConfig
from dispatcher.core.consumers import UNLIMITED


class LookAhead:
    """The room for waiting entries.

    Args:
        config: The limits.
        consumers: The core's.
        waiting: What waits.
        parked_entries_max: How many entries may wait as rows beyond the limits of those that wait as objects.
    """

    __slots__ = ("_config", "_consumers", "_parked_entries_max", "waiting")

    def __init__(self, config: DispatcherConfig, consumers: Sized, waiting: Sized, parked_entries_max: int) -> None:
        self._config = config
        self._consumers = consumers
        self.waiting = waiting
        self._parked_entries_max = parked_entries_max

    def limit(self) -> int:
        """Return Pulsar's limit: how many entries may wait as objects."""
        per_consumer = self._config.look_ahead_per_consumer
        per_subscription = self._config.look_ahead_per_subscription
        limit = per_consumer * max(1, len(self._consumers)) if per_consumer else per_subscription
        if per_subscription:
            limit = min(limit, per_subscription)
        if limit:
            return limit
        unacked_limits = (
            self._config.unacked_per_subscription_max,
            self._config.unacked_per_consumer_max * len(self._consumers),
        )
        return min((unacked for unacked in unacked_limits if unacked), default=UNLIMITED)

    def waiting_max(self) -> int:
        """Return how many entries may wait, as objects and parked."""
        return self.limit() + self._parked_entries_max

    def room(self) -> int:
        """Return how many entries may be read ahead."""
        return max(0, self.waiting_max() - len(self.waiting))

    def due_room(self) -> int:
        """Return how many due entries may be taken in."""
        # The limit counts twice, so that immediate entries that wait for one consumer do not make due ones late.
        return max(0, self.waiting_max() + self.limit() - len(self.waiting))
