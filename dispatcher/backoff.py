"""How long to wait before something is tried again: doubling, between two bounds, without chance."""


class Backoff:
    """Doubling waits.

    >>> backoff = Backoff(initial_ms=1, max_ms=10)
    >>> [backoff.next_seconds() for _ in range(6)]
    [0.001, 0.002, 0.004, 0.008, 0.01, 0.01]
    """

    def __init__(self, *, initial_ms: int, max_ms: int) -> None:
        self._initial_ms = initial_ms
        self._max_ms = max_ms
        self._next_ms = initial_ms

    def next_seconds(self) -> float:
        """Return the wait, and make the next one longer."""
        wait_ms = self._next_ms
        self._next_ms = min(max(1, 2 * wait_ms), self._max_ms)
        return wait_ms / 1000

    def reset(self) -> None:
        """Begin with the shortest wait again, after a success."""
        self._next_ms = self._initial_ms
