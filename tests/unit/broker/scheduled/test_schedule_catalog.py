"""The catalog of schedules, asked while its ledger grows."""

import asyncio
from typing import cast

import pytest

from managed_ledger.ledgers import LedgerInfo
from managed_ledger.positions.position import Position
from managed_ledger.reading.readable_log import ReadableLog
from managed_ledger.reading.selection import RowsRead, Skip
from postdate.broker.scheduled.catalog import ScheduleCatalog
from postdate.broker.scheduled.ledger_schedule import LedgerSchedule

QUESTIONS_MAX = 100


class GrowingLog:
    """A log of one ledger, whose read is answered on command."""

    name = "log"

    def __init__(self) -> None:
        self.answer = asyncio.get_running_loop().create_future()

    async def read_rows(self, _first: Position, *, entries_max: int, skip: Skip, through: Position) -> RowsRead:
        del entries_max, skip
        await self.answer
        return RowsRead([], Position(through.ledger_id, through.entry_id + 1))


class CountedLedger:
    """A ledger of so many entries, which a question looks at a few times and not for ever."""

    def __init__(self, entries: int) -> None:
        self.ledger_id = 1
        self._entries = entries
        self._looks = 0

    @property
    def entries(self) -> int:
        """The number of entries."""
        self._looks += 1
        if self._looks > QUESTIONS_MAX:
            raise AssertionError("the same read is waited for again and again")
        return self._entries


@pytest.mark.parametrize("turns", range(5))
def test_a_question_about_later_entries_ends_whenever_it_comes(turns: int) -> None:
    """Also in the turn of the event loop in which an earlier read ends: waiting for it takes no turn then."""

    async def story() -> tuple[LedgerSchedule, LedgerSchedule]:
        catalog, growing = ScheduleCatalog(), GrowingLog()
        log = cast(ReadableLog, growing)
        first = asyncio.create_task(catalog.schedule(log, cast(LedgerInfo, CountedLedger(10))))
        await asyncio.sleep(0.01)
        growing.answer.set_result(None)
        for _ in range(turns):
            await asyncio.sleep(0)
        second = asyncio.create_task(catalog.schedule(log, cast(LedgerInfo, CountedLedger(20))))
        async with asyncio.timeout(10):
            return await first, await second

    first, second = asyncio.run(story())

    assert first.entries == 10
    assert second.entries == 20
