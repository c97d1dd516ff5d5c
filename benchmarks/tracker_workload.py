"""The workloads of the tracker benchmark: messages under a delay law, and the tracker's settings.

The same for every tracker that is measured, and the same at each call. Times are virtual.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from managed_ledger.positions.value_types import Int64Array

LAWS: Final = ("fixed", "exponential", "week", "instant")
START_MS: Final = 1_700_000_000_000
HOUR_MS: Final = 3_600_000
NOW_MS: Final = START_MS - HOUR_MS
"""When messages are added: nothing is due."""

ALL_DUE_MS: Final = START_MS + 60 * 24 * HOUR_MS
SEGMENT_STEP_MS_MAX: Final = 300_000
SEGMENT_ROW_COUNT_MAX: Final = 5_000
POLL_ROWS: Final = 1_000
ADDS_PER_LAP: Final = 100
"""The longest pause of a single add is taken over so many, as reading the clock for each would cost as much."""

ASKED_ADDS: Final = 20_000
"""So many single adds are each followed by a question, of one kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Messages to be tracked, and how.

    Attributes:
        law: One of `LAWS`.
        messages: How many.
        entries_per_ledger: After so many, the next ledger begins.
        index_count_min: A bucket is sealed at the first new ledger with at least so many rows.
        bucket_count_max: Buckets are merged above so many, -1 for never.
    """

    law: str
    messages: int
    entries_per_ledger: int = 50_000
    index_count_min: int = 50_000
    bucket_count_max: int = -1

    @property
    def name(self) -> str:
        """Its name in reports."""
        parts = [self.law, _count(self.messages)]
        if self.entries_per_ledger != 50_000:
            parts.append(f"ledgers of {_count(self.entries_per_ledger)}")
        if self.index_count_min != 50_000:
            parts.append(f"{_count(self.index_count_min)} a bucket")
        if self.bucket_count_max > 0:
            parts.append(f"at most {self.bucket_count_max} buckets")
        return ", ".join(parts)

    def ledger_ids(self) -> Int64Array:
        """Return the ledger of each message."""
        return np.arange(self.messages) // self.entries_per_ledger

    def entry_ids(self) -> Int64Array:
        """Return the entry of each message."""
        return np.arange(self.messages) % self.entries_per_ledger

    def delivery_times(self) -> Int64Array:
        """Return when each message is due, if they are published one after the other, 100,000 a second."""
        rng = np.random.default_rng(195)
        published = START_MS + np.arange(self.messages) // 100
        if self.law == "fixed":
            return published + HOUR_MS
        if self.law == "exponential":
            return published + 60_000 + rng.exponential(HOUR_MS, self.messages).astype(np.int64)
        if self.law == "week":
            return published + 60_000 + rng.integers(0, 7 * 24 * HOUR_MS, self.messages)
        return np.full(self.messages, START_MS + 24 * HOUR_MS)


def workloads_of(messages: int) -> list[Workload]:
    """Return the workloads of all laws with so many messages, as the peer's figures were taken.

    Above a million, buckets are merged.
    """
    bucket_count_max = 50 if messages > 1_000_000 else -1
    return [Workload(law=law, messages=messages, bucket_count_max=bucket_count_max) for law in LAWS]


SPECIAL: Final = (
    Workload(law="exponential", messages=4_000_000, index_count_min=500_000),
    Workload(law="exponential", messages=100_000, entries_per_ledger=100, index_count_min=100),
    Workload(law="exponential", messages=999_000, entries_per_ledger=100, index_count_min=100),
)
"""Large buckets, of which each seal has ten times as much to sort; a thousand small ones; and ten thousand."""


def _count(value: int) -> str:
    return f"{value // 1_000_000} million" if value >= 1_000_000 else f"{value:,}"
