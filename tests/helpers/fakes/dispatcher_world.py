"""A log, a cursor, a tracker and consumers that are simple, in memory, and survive a crash as the real ones would.

`FakeLog` and `FakeLogCursor` are on disk: a crash keeps them, but for acknowledgements of the last moments, if the
scenario says so. `FakeTracker` remembers sealed ledgers over a crash as snapshots do, recovers them after a while, and
forgets the rest. Reads take a random time by seed, so that they interleave with all other steps.
"""

import asyncio
import bisect
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pyroaring import BitMap

from dispatcher import Delivery, KeySharedPolicy
from managed_ledger.entries.headers import NO_CHUNK, NOT_DELAYED, EntryHeaders
from managed_ledger.ledgers import LedgerInfo
from managed_ledger.positions.position import Position
from managed_ledger.reading.selection import HeadersRead
from snapshot_storage.encoding.columns import DelayedIndexes
from tests.helpers.fakes.virtual_time import now_ms
from tracker.delayed_delivery_tracker import DelayedDeliveryTracker


@dataclass(frozen=True)
class FakeEntry:
    """One entry of the fake log."""

    position: Position
    payload: bytes
    key_hash: int = 0
    deliver_at_ms: int = NOT_DELAYED
    publish_time_ms: int = 0
    message_count: int = 1
    flags: int = NO_CHUNK


@dataclass
class FakeLog:
    """Entries in order, in ledgers of a fixed size."""

    entries_per_ledger: int = 50
    chance: random.Random | None = None
    """Makes reads take time, and fail now and then."""
    failures: float = 0.0
    entries: list[FakeEntry] = field(default_factory=list)
    listeners: list[Callable[[], None]] = field(default_factory=list)
    headers_read: int = 0

    def append(
        self,
        payload: bytes,
        *,
        key_hash: int = 0,
        deliver_at_ms: int = NOT_DELAYED,
        message_count: int = 1,
        flags: int = NO_CHUNK,
    ) -> Position:
        """Append an entry and tell the listeners."""
        number = len(self.entries)
        position = Position(number // self.entries_per_ledger + 1, number % self.entries_per_ledger)
        self.entries.append(FakeEntry(position, payload, key_hash, deliver_at_ms, now_ms(), message_count, flags))
        for listener in tuple(self.listeners):
            listener()
        return position

    @property
    def last_confirmed_position(self) -> Position:
        return self.entries[-1].position if self.entries else Position(1, -1)

    def ledgers(self) -> list[LedgerInfo]:
        last = max(1, self.last_confirmed_position.ledger_id)
        counts = dict.fromkeys(range(1, last + 1), 0)
        for entry in self.entries:
            counts[entry.position.ledger_id] += 1
        return [LedgerInfo(ledger_id, n, 0, 0, ledger_id == last, ledger_id != last) for ledger_id, n in counts.items()]

    async def read_headers(
        self,
        first: Position,
        *,
        entries_max: int,
        skip: Callable[[int], BitMap | None] | None = None,
        through: Position | None = None,
    ) -> HeadersRead:
        skipped: dict[int, BitMap] = {}
        found: list[FakeEntry] = []
        at = bisect.bisect_left(self.entries, first, key=lambda entry: entry.position)
        end = len(self.entries)
        while at < end and len(found) < entries_max:
            entry = self.entries[at]
            if through is not None and entry.position > through:
                break
            ledger_id, entry_id = entry.position
            if ledger_id not in skipped:
                skipped[ledger_id] = (skip(ledger_id) if skip is not None else None) or BitMap()
            if entry_id not in skipped[ledger_id]:
                found.append(entry)
            at += 1
        next_position = self.position_at(at)
        await self._take_time()
        self.headers_read += len(found)
        return HeadersRead(_headers(found), next_position)

    def position_at(self, at: int) -> Position:
        if at < len(self.entries):
            return self.entries[at].position
        last = self.last_confirmed_position
        return Position(last.ledger_id, last.entry_id + 1)

    async def read_headers_at(self, ledger_ids: NDArray[np.int64], entry_ids: NDArray[np.int64]) -> EntryHeaders:
        await self._take_time()
        last = self.last_confirmed_position
        positions = zip(ledger_ids.tolist(), entry_ids.tolist(), strict=True)
        return _headers([self.entry(*at) for at in positions if at <= last])

    async def read_payloads(self, ledger_ids: Sequence[int], entry_ids: Sequence[int]) -> list[bytes | None]:
        await self._take_time()
        return [self.entry(*at).payload for at in zip(ledger_ids, entry_ids, strict=True)]

    def entry(self, ledger_id: int, entry_id: int) -> FakeEntry:
        return self.entries[(ledger_id - 1) * self.entries_per_ledger + entry_id]

    def add_listener(self, on_committed: Callable[[], None]) -> None:
        self.listeners.append(on_committed)

    def remove_listener(self, on_committed: Callable[[], None]) -> None:
        self.listeners.remove(on_committed)

    async def _take_time(self) -> None:
        if self.chance is not None:
            if self.chance.random() < self.failures:
                raise OSError("the disk says no")
            if self.chance.random() < 0.7:
                await asyncio.sleep(self.chance.choice([0, 0, 0.001, 0.004]))


def _headers(entries: Sequence[FakeEntry]) -> EntryHeaders:
    def column(values: list[int], dtype: type) -> NDArray[np.generic]:
        return np.array(values, dtype=dtype)

    return EntryHeaders(
        column([entry.position.ledger_id for entry in entries], np.int64),
        column([entry.position.entry_id for entry in entries], np.int64),
        column([entry.deliver_at_ms for entry in entries], np.int64),
        column([entry.publish_time_ms for entry in entries], np.int64),
        column([entry.key_hash for entry in entries], np.int32),
        column([len(entry.payload) for entry in entries], np.int32),
        column([entry.message_count for entry in entries], np.int32),
        column([entry.flags for entry in entries], np.uint32),
    )


@dataclass
class FakeLogCursor:
    """Acknowledged positions; the mark-delete position is found by walking."""

    log: FakeLog
    name: str = "sub"
    acknowledged: dict[int, BitMap] = field(default_factory=dict)
    acknowledgements: int = 0
    listeners: list[Callable[[Position], None]] = field(default_factory=list)

    def add_listener(self, on_mark_delete_moved: Callable[[Position], None]) -> None:
        self.listeners.append(on_mark_delete_moved)

    def remove_listener(self, on_mark_delete_moved: Callable[[Position], None]) -> None:
        self.listeners.remove(on_mark_delete_moved)

    @property
    def properties(self) -> Mapping[str, str]:
        return {}

    @property
    def next_unacknowledged_position(self) -> Position:
        for entry in self.log.entries:
            if not self.is_acknowledged(*entry.position):
                return entry.position
        return self.log.position_at(len(self.log.entries))

    @property
    def mark_delete_position(self) -> Position:
        ledger_id, entry_id = self.next_unacknowledged_position
        return Position(ledger_id, entry_id - 1)

    def is_acknowledged(self, ledger_id: int, entry_id: int) -> bool:
        return entry_id in self.acknowledged.get(ledger_id, ())

    def acknowledged_in(self, ledger_id: int) -> BitMap:
        return BitMap(self.acknowledged.get(ledger_id, ()))

    def acknowledge(self, ledger_ids: Sequence[int], entry_ids: Sequence[int]) -> int:
        new = 0
        for ledger_id, entry_id in zip(ledger_ids, entry_ids, strict=True):
            if not self.is_acknowledged(ledger_id, entry_id):
                self.acknowledged.setdefault(ledger_id, BitMap()).add(entry_id)
                new += 1
        self.acknowledgements += new
        for listener in self.listeners:
            listener(self.mark_delete_position)
        return new

    def acknowledge_cumulative(self, position: Position) -> int:
        through = [entry.position for entry in self.log.entries if entry.position <= position]
        return self.acknowledge([at.ledger_id for at in through], [at.entry_id for at in through])

    async def seek(self, position: Position) -> None:
        await asyncio.sleep(0)
        self.acknowledged = {}
        before = [entry.position for entry in self.log.entries if entry.position < position]
        self.acknowledge([at.ledger_id for at in before], [at.entry_id for at in before])

    async def update_properties(self, *, put: Mapping[str, str] = {}, remove: Collection[str] = ()) -> None:
        raise AssertionError("a dispatcher changes no properties")


class FakeTracker(DelayedDeliveryTracker):
    """Delayed positions in a sorted list. `sealed` lists what a crash keeps and a start recovers after a while."""

    def __init__(
        self,
        on_available: Callable[[], None],
        sealed: Collection[tuple[int, int, int]] = (),
        *,
        recovery_seconds: float = 0.0,
    ) -> None:
        self.rows: list[tuple[int, int, int]] = []
        self.positions: dict[int, BitMap] = {}
        self.handed_out: list[tuple[int, int, int]] = []
        self.on_available = on_available
        self._timer: asyncio.TimerHandle | None = None
        self._recovering: set[int] = set()
        self._to_recover = {(ledger_id, entry_id) for _, ledger_id, entry_id in sealed}
        if sealed:
            self._recovering = {ledger_id for _, ledger_id, _ in sealed}
            asyncio.get_running_loop().call_later(recovery_seconds, self._recover, list(sealed))

    def _recover(self, sealed: list[tuple[int, int, int]]) -> None:
        self._recovering, self._to_recover = set(), set()
        for row in sealed:
            self._add(*row)
        self.on_available()
        self._arm()

    def _add(self, deliver_at: int, ledger_id: int, entry_id: int) -> None:
        tracked = self.positions.setdefault(ledger_id, BitMap())
        assert entry_id not in tracked, f"{ledger_id}:{entry_id} is tracked twice"
        tracked.add(entry_id)
        bisect.insort(self.rows, (deliver_at, ledger_id, entry_id))

    def add_message(self, ledger_id: int, entry_id: int, deliver_at: int) -> bool:
        assert (ledger_id, entry_id) not in self._to_recover, "read before it was recovered"
        if deliver_at <= now_ms():
            return False
        self._add(deliver_at, ledger_id, entry_id)
        self._arm()
        return True

    def add_messages(self, ledger_ids: ArrayLike, entry_ids: ArrayLike, deliver_ats: ArrayLike) -> NDArray[np.bool_]:
        columns = (np.asarray(column).tolist() for column in (ledger_ids, entry_ids, deliver_ats))
        return np.array([self.add_message(*row) for row in zip(*columns, strict=True)], dtype=np.bool_)

    def contains_message(self, ledger_id: int, entry_id: int) -> bool:
        return entry_id in self.positions.get(ledger_id, ())

    def tracked_in(self, ledger_id: int) -> BitMap | None:
        return self.positions.get(ledger_id)

    def is_recovering(self, ledger_id: int) -> bool:
        return ledger_id in self._recovering

    def has_message_available(self) -> bool:
        return bool(self.rows) and self.rows[0][0] <= now_ms()

    def next_delivery_time(self) -> int | None:
        return self.rows[0][0] if self.rows else None

    def get_scheduled_messages(self, max_messages: int) -> DelayedIndexes:
        due = bisect.bisect_left(self.rows, (now_ms() + 1, -1, -1))
        taken, self.rows = self.rows[: min(due, max_messages)], self.rows[min(due, max_messages) :]
        for _, ledger_id, entry_id in taken:
            self.positions[ledger_id].remove(entry_id)
        self.handed_out.extend(taken)
        self._arm()
        columns = np.array(taken, dtype=np.int64).reshape(-1, 3)
        return DelayedIndexes(columns[:, 0], columns[:, 1], columns[:, 2])

    def number_of_delayed_messages(self) -> int:
        return len(self.rows)

    def number_of_future_messages(self) -> int:
        return sum(deliver_at > now_ms() for deliver_at, _, _ in self.rows)

    def remove_acknowledged(self, ledger_id: int, entry_ids: BitMap) -> None:
        self.rows = [row for row in self.rows if row[1] != ledger_id or row[2] not in entry_ids]
        if ledger_id in self.positions:
            self.positions[ledger_id] -= entry_ids

    def should_pause_all_deliveries(self) -> bool:
        return False

    def reset_tick_time(self, tick_time_ms: int) -> None:
        """Every tick is the time itself here."""

    async def clear(self) -> None:
        await asyncio.sleep(0)
        self.rows, self.positions, self._recovering = [], {}, set()

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self.rows:
            wait = max(0, self.rows[0][0] - now_ms()) / 1000
            self._timer = asyncio.get_running_loop().call_later(wait, self.on_available)


class FakeConsumer:
    """Writes down what it gets; `on_delivery` is called for every entry."""

    def __init__(
        self,
        name: str,
        on_delivery: Callable[["FakeConsumer", Delivery], None] | None = None,
        *,
        priority_level: int = 0,
        policy: KeySharedPolicy | None = None,
    ) -> None:
        self.name = name
        self.consumer_id = 1
        self.priority_level = priority_level
        self.key_shared_policy = policy if policy is not None else KeySharedPolicy()
        self.is_writable = True
        self.is_active: bool | None = None
        self.deliveries: list[Delivery] = []
        self.batches = 0
        self._on_delivery = on_delivery

    def begin_read(self, size: int) -> None:
        """Its connection takes as much as is read."""

    def end_read(self, size: int) -> None:
        """Its connection takes as much as is read."""

    def send_messages(self, deliveries: Sequence[Delivery]) -> None:
        self.batches += 1
        for delivery in deliveries:
            self.deliveries.append(delivery)
            if self._on_delivery is not None:
                self._on_delivery(self, delivery)

    def active_consumer_changed(self, is_active: bool) -> None:
        self.is_active = is_active

    @property
    def payloads(self) -> list[bytes]:
        """The payloads that the consumer got, in order."""
        return [delivery.payload for delivery in self.deliveries]

    def positions(self) -> list[tuple[int, int]]:
        """The positions of the entries that the consumer got, in order."""
        return [(delivery.ledger_id, delivery.entry_id) for delivery in self.deliveries]
