"""The wall clock, for programs that have none of their own. The rooms below take the time as an argument."""

import time


def now_ms() -> int:
    """Give the wall clock in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000
