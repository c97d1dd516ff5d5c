"""Find the messages that a request selects, as whole entries and as messages of batches.

An id of one chunk of a chunked message means all of its chunks: the client knows the last one alone, and a consumer
drops a message without all of them. The chunks of a message share time and key, so conditions mean all of them already.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

import numpy as np

from broker.scheduled.chunks import chunked_messages
from broker.scheduled.messages import MessageId, columns_of
from broker.scheduled.selection import Rows, Wanted, ordered, rows_of_times
from broker.scheduled.topic_schedule import BatchLeft, RowsFound, TopicSchedule
from broker.slices import Turns
from managed_ledger.entries.headers import NO_CHUNK, EntryHeader, EntryHeaders
from managed_ledger.entries.message_metadata import ChunkedMessage
from managed_ledger.position import Position
from managed_ledger.replacing import by_ledger
from tracker.columns.positions import is_in_bitmap, ledger_groups

_IDS_PER_LOOK: Final = 64
"""Ids that are found between two looks at the clock."""

TimesByPosition = dict[Position, int]
"""Delivery times of entries; for a few entries this is far cheaper than columns."""


@dataclass(slots=True)
class Matched:
    """The messages that a selector has found."""

    entries: TimesByPosition | Rows
    """Whole entries: as they were named, or in order of delivery where conditions found them."""
    batches: Mapping[Position, BatchLeft] = field(default_factory=dict)
    """Those of them that hold several messages."""
    parts: dict[MessageId, int] = field(default_factory=dict)
    """Messages of batches, with their delivery times."""
    unknown: int = 0
    """Ids that belong to no scheduled message."""

    @property
    def message_count(self) -> int:
        """How many messages they are: as many as a list would show."""
        count = len(self.entries) + len(self.parts)
        for one in self.batches.values():
            count += one.message_count - 1
        return count

    @property
    def rows(self) -> Rows:
        """The whole entries as columns, in order of delivery."""
        return self.entries if isinstance(self.entries, Rows) else ordered([rows_of_times(self.entries)])

    def without(self, batches: Collection[Position]) -> "Matched":
        """Return the messages without some batches and all that are meant of batches in part."""
        gone = by_ledger(batches)
        rows = self.rows
        is_kept = np.ones(len(rows), np.bool_)
        for ledger_id, group in ledger_groups(rows.ledger_ids):
            is_kept[group] = ~is_in_bitmap(rows.entry_ids[group], gone.get(ledger_id))
        kept = {at: left for at, left in self.batches.items() if at.entry_id not in gone.get(at.ledger_id, ())}
        return Matched(rows.take(is_kept), kept, unknown=self.unknown)

    def positions(self, begin: int, end: int) -> list[tuple[int, int]]:
        """Return the positions of some of the whole entries."""
        if isinstance(self.entries, Rows):
            rows = self.entries.take(slice(begin, end))
            return list(zip(rows.ledger_ids.tolist(), rows.entry_ids.tolist(), strict=True))
        return list(islice(self.entries, begin, end))

    def due_count(self, now_ms: int) -> int:
        """Return how many of the messages are due."""
        if isinstance(self.entries, Rows):
            count = int(np.count_nonzero(self.entries.deliver_at_ms <= now_ms))
        else:
            count = _past(self.entries.values(), now_ms)
        for one in self.batches.values():
            count += one.message_count - 1 if one.deliver_at_ms <= now_ms else 0
        return count + _past(self.parts.values(), now_ms)

    def messages_of(self, entries: Collection[tuple[int, int]]) -> int:
        """Return how many messages some of the entries hold."""
        if not self.batches:
            return len(entries)
        return len(entries) + sum(self.batches[Position(*at)].message_count - 1 for at in entries if at in self.batches)


async def match_ids(schedule: TopicSchedule, ids: Sequence[MessageId]) -> Matched:
    """Find the messages of these ids, and with a chunk the other chunks of its message.

    Raises:
        LedgerError: The log cannot be read.
    """
    headers = await schedule.topic.ledger.read_each_header([one.position for one in ids])
    whole: TimesByPosition = {}
    batches: dict[Position, BatchLeft] = {}
    may_be_chunks: list[Position] = []
    parts: dict[MessageId, int] = {}
    unknown = 0
    turns = Turns()
    for number, one in enumerate(dict.fromkeys(ids), 1):
        at, index = one
        header = headers.get(at)
        if header is None or not _is_meant(schedule, one, header):
            unknown += 1
        elif index is not None and header.message_count > 1:
            parts[one] = header.deliver_at_ms
        else:
            whole[at] = header.deliver_at_ms
            if header.message_count > 1:
                batches[at] = BatchLeft(header.deliver_at_ms, schedule.left_of(at, header.message_count))
            elif not header.flags & NO_CHUNK:
                # Headers of older versions leave open what is a chunk. A batch is never divided into chunks.
                may_be_chunks.append(at)
        if number % _IDS_PER_LOOK == 0:
            await turns.give_way()
    if may_be_chunks:
        whole |= await _other_chunks(schedule, may_be_chunks)
    if parts:
        parts = {one: deliver_at_ms for one, deliver_at_ms in parts.items() if one.position not in whole}
    return Matched(whole, batches, parts, unknown)


def match_rows(schedule: TopicSchedule, found: RowsFound) -> Matched:
    """Return the messages found by conditions: whole entries, and the chosen messages of other batches."""
    parts = {
        MessageId(at, index): chosen.deliver_at_ms
        for at, chosen in found.chosen.items()
        for index in sorted(chosen.indexes)
        if _is_left(schedule, at, index)
    }
    return Matched(found.rows, found.batches, parts)


def batches_in_part(schedule: TopicSchedule, matched: Matched) -> list[Position]:
    """Return the batches that are meant or left in part alone, which no copy can stand for.

    A copy is whole: it would bring back the messages that were acknowledged or cancelled out of the batch.
    """
    found = {one.position for one in matched.parts}
    gone = {Position(*at) for subscription in schedule.subscriptions for at in subscription.batches_in_part()}
    return sorted(found | gone.intersection(matched.batches))


def _past(times_ms: Iterable[int], now_ms: int) -> int:
    return len([deliver_at_ms for deliver_at_ms in times_ms if deliver_at_ms <= now_ms])


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
        rows = (await schedule.rows(Wanted(deliver_at_ms, deliver_at_ms + 1, sticky_hash))).rows
        neighbours = await log.read_headers_at(rows.ledger_ids, rows.entry_ids)
        of_each = await chunked_messages(log, neighbours)
        found |= {
            at: deliver_at_ms
            for at, message in zip(_positions(neighbours), of_each, strict=True)
            if message in messages
        }
    return found


def _is_meant(schedule: TopicSchedule, message_id: MessageId, header: EntryHeader) -> bool:
    at, index = message_id
    return schedule.is_scheduled(at, header.deliver_at_ms) and (
        index is None or (index < header.message_count and _is_left(schedule, at, index))
    )


def _is_left(schedule: TopicSchedule, at: Position, index: int) -> bool:
    """Whether a subscription that has not acknowledged the batch still lacks one of its messages."""
    return any(not one.cursor.is_acknowledged(*at) and one.has_part(at, index) for one in schedule.subscriptions)


def _positions(rows: EntryHeaders) -> list[Position]:
    return list(map(Position, rows.ledger_ids.tolist(), rows.entry_ids.tolist()))
