"""Rates of counters, as Pulsar's stats have them: per second, over the last whole window.

A window ends every `statsUpdateFrequencyInSecs`; until the first has ended a rate is 0. Nothing is counted here: the
counters are read when a window ends, so a message costs nothing. Prometheus computes its own from the counters.
"""

from typing import NamedTuple


class ConsumerCounters(NamedTuple):
    """The messages of a consumer since it connected: sent, acknowledged, redelivered."""

    messages_out: int = 0
    bytes_out: int = 0
    messages_redelivered: int = 0
    messages_acked: int = 0


class RateMeter:
    """The rates of some counters.

    Args:
        steady_ms: When the first window begins, by a clock that is never set.
        counters: The counters at that time.
    """

    def __init__(self, steady_ms: int, counters: tuple[int, ...]) -> None:
        self.rates: tuple[float, ...] = (0.0,) * len(counters)
        """Per second, in the order of the counters."""
        self._counters = counters
        self._since_ms = steady_ms

    def end_window(self, counters: tuple[int, ...], steady_ms: int) -> None:
        """End the window with the present counters.

        >>> meter = RateMeter(0, (0, 0))
        >>> meter.end_window((50, 4000), 10_000)
        >>> meter.rates
        (5.0, 400.0)
        """
        elapsed_ms = steady_ms - self._since_ms
        # It may have begun in this millisecond.
        if elapsed_ms > 0:
            self.rates = tuple(
                (after - before) * 1000 / elapsed_ms for before, after in zip(self._counters, counters, strict=True)
            )
        self._counters, self._since_ms = counters, steady_ms
