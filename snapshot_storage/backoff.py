"""Back-off: the wait before another try, twice as long each time, between two bounds. One for all rooms."""

from random import Random


def backoff_ms(failures: int, *, min_ms: int, max_ms: int, chance: Random | None = None) -> int:
    """Return how long to wait after so many failures in a row, at least one.

    Args:
        failures: How many.
        min_ms: The wait after the first.
        max_ms: The longest one.
        chance: If given, up to half of the wait is left out, so that many callers that failed together do not come back
            together.

    >>> [backoff_ms(failures, min_ms=100, max_ms=1_000) for failures in (1, 2, 3, 4, 5, 99)]
    [100, 200, 400, 800, 1000, 1000]
    """
    wait_ms = min(max_ms, min_ms << min(failures - 1, 30))
    return wait_ms if chance is None else wait_ms - chance.randrange(wait_ms // 2 + 1)


class Backoff:
    """The waits of one thing that is tried again and again.

    >>> backoff = Backoff(min_ms=1, max_ms=10)
    >>> [backoff.next_seconds() for _ in range(6)]
    [0.001, 0.002, 0.004, 0.008, 0.01, 0.01]
    """

    def __init__(self, *, min_ms: int, max_ms: int, chance: Random | None = None) -> None:
        self._min_ms = min_ms
        self._max_ms = max_ms
        self._chance = chance
        self._failures = 0

    def next_seconds(self) -> float:
        """Return the wait, and make the next one longer."""
        self._failures += 1
        # A wait of nothing grows all the same.
        min_ms = self._min_ms if self._failures == 1 else max(1, self._min_ms)
        wait_ms = backoff_ms(self._failures, min_ms=min(min_ms, self._max_ms), max_ms=self._max_ms, chance=self._chance)
        return wait_ms / 1_000

    def reset(self) -> None:
        """Begin with the shortest wait again, after a success."""
        self._failures = 0
