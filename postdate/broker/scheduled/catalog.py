"""A bounded cache of the schedules of ledgers, filled from the headers of the log.

One catalog serves all topics. A ledger is read in slices, so that the loop goes on; the largest steps are in threads.
An evicted schedule is read again at the next request, which costs time and nothing else.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from typing import Final

from pyroaring import BitMap

from managed_ledger.errors import EntriesDamagedError
from managed_ledger.ledgers import LedgerInfo
from managed_ledger.positions.position import Position
from managed_ledger.reading.readable_log import ReadableLog
from managed_ledger.reading.selection import RowsRead
from postdate.broker.scheduled.ledger_schedule import LedgerSchedule, extended
from postdate.broker.slices import Turns

CATALOG_BYTES_MAX: Final = 256 * 1024 * 1024
"""Room for some 16 million delayed entries."""
_READ_ENTRIES: Final = 32_768
_SORT_IN_THREAD_ROWS: Final = 8_192


class ScheduleCatalog:
    """The cache; belongs to one event loop.

    Args:
        bytes_max: The most memory of all schedules.
    """

    def __init__(self, bytes_max: int = CATALOG_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self.bytes_used = 0
        self._kept: OrderedDict[tuple[str, int], LedgerSchedule] = OrderedDict()
        self._spans: dict[str, dict[int, tuple[int, int | None, int | None]]] = {}
        """By topic and ledger: the number of entries read, the first and the last time."""
        self._reading: dict[tuple[str, int], asyncio.Task[LedgerSchedule]] = {}

    def may_have(self, log: ReadableLog, ledger: LedgerInfo, from_ms: int | None, until_ms: int | None) -> bool:
        """Return whether a ledger can have an entry that is due in this time, as far as is known without reading."""
        span = self._spans.get(log.name, {}).get(ledger.ledger_id)
        if ledger.entries == 0:
            return False
        if span is None or span[0] < ledger.entries:
            return True
        _, first_ms, last_ms = span
        if first_ms is None or last_ms is None:
            return False
        return (from_ms is None or last_ms >= from_ms) and (until_ms is None or first_ms < until_ms)

    def first_ms(self, log: ReadableLog, ledger: LedgerInfo) -> int | None:
        """Return the earliest time of a ledger, where all of it has been read before; None otherwise."""
        span = self._spans.get(log.name, {}).get(ledger.ledger_id)
        return None if span is None or span[0] < ledger.entries else span[1]

    async def schedule(self, log: ReadableLog, ledger: LedgerInfo) -> LedgerSchedule:
        """Return the schedule of a ledger, at least as far as it is durable now.

        Raises:
            LedgerError: The log cannot be read.
        """
        key = (log.name, ledger.ledger_id)
        while True:
            known = self._kept.get(key)
            if known is not None and known.entries >= ledger.entries:
                self._kept.move_to_end(key)
                return known
            task = self._reading.get(key)
            if task is None:
                task = self._reading[key] = asyncio.ensure_future(self._read_alone(log, ledger, known))
            # Shielded: others may wait for the same ledger.
            read = await asyncio.shield(task)
            if read.entries >= ledger.entries:
                return read

    def forget(self, name: str) -> None:
        """Forget a topic that was closed or deleted; later questions read it again."""
        for ledger_id in self._spans.pop(name, ()):
            self._drop((name, ledger_id))

    async def schedules(
        self, log: ReadableLog, ledgers: Sequence[LedgerInfo], from_ms: int | None, until_ms: int | None
    ) -> AsyncIterator[LedgerSchedule]:
        """Yield the schedules of those of some ledgers that may have something in this time."""
        first = next(iter(log.ledgers()), None)
        self._forget_before(log.name, 0 if first is None else first.ledger_id)
        turns = Turns()
        for ledger in ledgers:
            if self.may_have(log, ledger, from_ms, until_ms):
                yield await self.schedule(log, ledger)
                await turns.give_way()

    async def _read_alone(self, log: ReadableLog, ledger: LedgerInfo, known: LedgerSchedule | None) -> LedgerSchedule:
        try:
            return await self._read(log, ledger, known)
        finally:
            # Before the task is done: to wait for a task that is done takes no turn of the loop, so a question about
            # entries that came meanwhile would get it again and again, and no other callback would run.
            del self._reading[log.name, ledger.ledger_id]

    async def _read(self, log: ReadableLog, ledger: LedgerInfo, known: LedgerSchedule | None) -> LedgerSchedule:
        begin = 0 if known is None else known.entries
        position, through = Position(ledger.ledger_id, begin), Position(ledger.ledger_id, ledger.entries - 1)
        parts: list[RowsRead] = []
        damaged = BitMap()

        def damaged_in(_: int) -> BitMap:
            return damaged

        while position <= through:
            try:
                read = await log.read_rows(position, entries_max=_READ_ENTRIES, skip=damaged_in, through=through)
            except EntriesDamagedError as error:
                # The same read goes on without them.
                damaged |= error.entries[ledger.ledger_id]
                continue
            parts.append(read)
            if read.next_position.ledger_id != ledger.ledger_id or read.next_position <= position:
                break
            position = read.next_position
            # Cached schedules are read without suspending.
            await asyncio.sleep(0)
        arguments = (known, ledger.ledger_id, ledger.entries, parts, damaged)
        if (0 if known is None else len(known)) + ledger.entries - begin >= _SORT_IN_THREAD_ROWS:
            schedule = await asyncio.to_thread(_extended, *arguments)
        else:
            schedule = _extended(*arguments)
        self._keep(log.name, schedule)
        return schedule

    def _keep(self, name: str, schedule: LedgerSchedule) -> None:
        key = (name, schedule.ledger_id)
        times = schedule.deliver_at_ms
        bounds = (int(times[0]), int(times[-1])) if len(times) else (None, None)
        self._spans.setdefault(name, {})[schedule.ledger_id] = (schedule.entries, *bounds)
        self._drop(key)
        self._kept[key] = schedule
        self.bytes_used += schedule.cost_bytes
        while self.bytes_used > self.bytes_max and self._kept:
            self._drop(next(iter(self._kept)))

    def _drop(self, key: tuple[str, int]) -> None:
        dropped = self._kept.pop(key, None)
        if dropped is not None:
            self.bytes_used -= dropped.cost_bytes

    def _forget_before(self, name: str, ledger_id: int) -> None:
        """Forget ledgers of a topic that were trimmed."""
        spans = self._spans.get(name, {})
        for passed in [one for one in spans if one < ledger_id]:
            self._drop((name, passed))
            del spans[passed]


def _extended(
    known: LedgerSchedule | None, ledger_id: int, entries: int, parts: Sequence[RowsRead], damaged: BitMap
) -> LedgerSchedule:
    return extended(known, ledger_id, entries, [part.headers() for part in parts], damaged)
