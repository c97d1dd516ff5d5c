"""The earlier of two times of which each may be missing: it is asked for after every event, so it has to be fast."""


def earlier(first_ms: int | None, second_ms: int | None) -> int | None:
    """Return the earlier time, the only one, or None.

    >>> earlier(3, 2), earlier(None, 2), earlier(None, None)
    (2, 2, None)
    """
    if first_ms is None:
        return second_ms
    return first_ms if second_ms is None else min(first_ms, second_ms)
