"""How the log is cut into ledgers, cached and flushed.

Keys are Pulsar's where Pulsar has one. Nothing here reads files or the environment: the service does.
"""

from dataclasses import dataclass, field

from managed_ledger.positions.value_types import InvalidValueError


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagedLedgerConfig:
    """Limits of ledgers, caches and flushes."""

    entries_per_ledger_max: int = field(default=50_000, metadata={"key": "managedLedgerMaxEntriesPerLedger"})
    """A ledger is closed with exactly this many entries.

    Larger means fewer delayed-index buckets and later trimming. Default 50,000.
    """

    ledger_bytes_max: int = field(
        default=2048 * 2**20, metadata={"key": "managedLedgerMaxSizePerLedgerMbytes", "factor": 2**20}
    )
    """A ledger is closed by the entry that brings its payloads to this many bytes. Default 2 GiB."""

    rollover_time_ms: int = field(
        default=240 * 60_000, metadata={"key": "managedLedgerMaxLedgerRolloverTimeMinutes", "factor": 60_000}
    )
    """A ledger with entries is closed by `roll_over_if_aged` after this time. Default 4 hours."""

    cache_bytes_max: int = field(default=128 * 2**20, metadata={"key": "managedLedgerCacheSizeMB", "factor": 2**20})
    """Memory for blocks of headers (a quarter) and payloads (the rest), of all topics together.

    Larger means that consumers further behind are served without reading from disk. 0 turns the cache off, also
    for tailing reads. Default 128 MiB.
    """

    write_buffer_bytes: int = 32 * 2**20
    """RocksDB's memtable for payloads; twice this can be in memory. Default 32 MiB."""

    ack_flush_interval_ms: int = 5
    """How long an acknowledgement waits before it goes to the journal, so that many share one record.

    `kill -9` loses at most the acknowledgements of this time; they are delivered again. Default 5 ms.
    """

    round_participants_max: int = 32
    """Topics and cursors in one round of the group commit.

    Each takes 30 µs of the event loop, and work that follows in the same turn, such as the rest of a subscribe, up to
    250. With thousands of topics a synced write for so many is shared by enough of them. Default 32.
    """

    synced_interval_ms: int = 0
    """The least time between the beginnings of two synced rounds of the group commit; those between wait together.

    Above 0, what need not be synced waits for a round that is, a second at most, and a round is cut at 16 MiB: for a
    log on object storage, where each round is a request that costs money. Default 0: none.
    """

    compact_bytes_min: int = 256 * 2**20
    """Once this much payload was trimmed, its range is compacted, which gives the space back.

    Smaller gives it back sooner and writes more; RocksDB by itself may leave it for long. Default 256 MiB.
    """

    def __post_init__(self) -> None:
        for name, least in (
            ("entries_per_ledger_max", 1),
            ("ledger_bytes_max", 1),
            ("rollover_time_ms", 1),
            ("cache_bytes_max", 0),
            ("write_buffer_bytes", 2**16),
            ("ack_flush_interval_ms", 0),
            ("synced_interval_ms", 0),
            ("round_participants_max", 1),
            ("compact_bytes_min", 1),
        ):
            value = getattr(self, name)
            if value < least:
                raise InvalidValueError(name, "at least {least}", value=value, least=least)
        # Entry ids are kept in 32-bit Roaring bitmaps, and their count must fit as well.
        if self.entries_per_ledger_max >= 2**31:
            raise InvalidValueError("entries_per_ledger_max", "below 2^31", value=self.entries_per_ledger_max)
