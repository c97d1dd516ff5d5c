"""Find the messages that a request selects.

An id of one chunk of a chunked message means all of its chunks: the client knows the last one alone, and a consumer
drops a message without all of them. The chunks of a message share time and key, so conditions mean all of them already.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import compress, islice
from typing import Final

import numpy as np

from managed_ledger.entries.headers import NO_CHUNK, EntryHeaders
from managed_ledger.entries.message_metadata import ChunkedMessage
from managed_ledger.errors import EntriesDamagedError
from managed_ledger.positions.position import Position
from managed_ledger.positions.value_types import Int64Array, Mask
from managed_ledger.replacing import Entries
from postdate.broker.scheduled.chunks import chunked_messages
from postdate.broker.scheduled.messages import OnDamaged, columns_of
from postdate.broker.scheduled.selection import Rows, Wanted, ordered, rows_of_times
from postdate.broker.scheduled.topic_schedule import TopicSchedule
from postdate.broker.slices import Turns
from tracker.columns.positions import is_in

_IDS_PER_LOOK: Final = 64
"""Ids that are found between two looks at the clock."""

TimesByPosition = dict[Position, int]
"""Delivery times of entries; for a few entries this is far cheaper than columns."""


@dataclass(slots=True)
class Matched:
    """The messages that a selector has found."""

    entries: TimesByPosition | Rows
    """As they were named, or in order of delivery where conditions found them."""
    unknown: int = 0
    """Ids that belong to no scheduled message."""

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def rows(self) -> Rows:
        """The messages as columns, in order of delivery."""
        return self.entries if isinstance(self.entries, Rows) else ordered([rows_of_times(self.entries)])

    def positions(self, begin: int, end: int) -> list[tuple[int, int]]:
        """Return the positions of some of the messages."""
        if isinstance(self.entries, Rows):
            rows = self.entries.take(slice(begin, end))
            return list(zip(rows.ledger_ids.tolist(), rows.entry_ids.tolist(), strict=True))
        return list(islice(self.entries, begin, end))

    @property
    def deliver_at_ms(self) -> Int64Array:
        """The delivery times, in this order."""
        if isinstance(self.entries, Rows):
            return self.entries.deliver_at_ms
        return np.array(list(self.entries.values()), np.int64)

    def where(self, is_meant: Mask) -> "Matched":
        """Return some of the messages."""
        if isinstance(self.entries, Rows):
            return Matched(self.entries.take(is_meant))
        return Matched(dict(compress(self.entries.items(), is_meant.tolist())))

    def count_in(self, entries: Entries) -> int:
        """Return how many of the messages are among some entries."""
        rows = self.rows
        return int(np.count_nonzero(is_in(entries.get, rows.ledger_ids, rows.entry_ids)))


async def match_ids(schedule: TopicSchedule, ids: Sequence[Position], on_damaged: OnDamaged) -> Matched:
    """Find the messages of these ids, and with a chunk the other chunks of its message.

    Args:
        schedule: The topic's schedule for the subscriptions that are concerned.
        ids: The ids.
        on_damaged: Told of those whose headers are damaged.

    Raises:
        LedgerError: The log cannot be read.
    """
    try:
        headers = await schedule.topic.ledger.read_each_header(ids)
    except EntriesDamagedError as error:
        on_damaged(error.entries)
        intact = [at for at in ids if at.entry_id not in error.entries.get(at.ledger_id, ())]
        return await match_ids(schedule, intact, on_damaged)
    found: TimesByPosition = {}
    may_be_chunks: list[Position] = []
    unknown = 0
    turns = Turns()
    for number, at in enumerate(dict.fromkeys(ids), 1):
        header = headers.get(at)
        if header is None or not schedule.is_scheduled(at, header.deliver_at_ms):
            unknown += 1
        else:
            found[at] = header.deliver_at_ms
            # Headers of older versions leave open what is a chunk. A batch is never divided into chunks.
            if header.message_count == 1 and not header.flags & NO_CHUNK:
                may_be_chunks.append(at)
        if number % _IDS_PER_LOOK == 0:
            await turns.give_way()
    if may_be_chunks:
        found |= await _other_chunks(schedule, may_be_chunks)
    return Matched(found, unknown)


async def _other_chunks(schedule: TopicSchedule, asked: Collection[Position]) -> TimesByPosition:
    """Return all scheduled chunks of the messages of which these entries are chunks."""
    log = schedule.topic.ledger
    single = await log.read_headers_at(*columns_of(asked))
    columns = zip(single.deliver_at_ms.tolist(), single.sticky_hashes.tolist(), strict=True)
    wanted: dict[tuple[int, int], set[ChunkedMessage]] = {}
    for column, message in zip(columns, await chunked_messages(log, single), strict=True):
        if message is not None:
            wanted.setdefault(column, set()).add(message)
    found: TimesByPosition = {}
    for (deliver_at_ms, sticky_hash), messages in wanted.items():
        rows = await schedule.rows(Wanted(deliver_at_ms, deliver_at_ms + 1, sticky_hash))
        neighbours = await log.read_headers_at(rows.ledger_ids, rows.entry_ids)
        of_each = await chunked_messages(log, neighbours)
        found |= {
            at: deliver_at_ms
            for at, message in zip(_positions(neighbours), of_each, strict=True)
            if message in messages
        }
    return found


def _positions(rows: EntryHeaders) -> list[Position]:
    return list(map(Position, rows.ledger_ids.tolist(), rows.entry_ids.tolist()))
