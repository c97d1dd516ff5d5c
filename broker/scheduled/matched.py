"""Find the messages that a request selects, as whole entries and as messages of batches.

An id of one chunk of a chunked message means all of its chunks: the client knows the last one alone, and a consumer
drops a message without all of them. The chunks of a message share time and key, so conditions mean all of them already.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from broker.scheduled.chunks import ChunkedMessage, chunked_messages
from broker.scheduled.messages import MessageId, columns_of
from broker.scheduled.selection import NO_ROWS, Rows, Wanted, ordered, rows_at, rows_of_headers
from broker.scheduled.topic_schedule import BatchLeft, RowsFound, TopicSchedule
from broker.server.slices import Turns
from managed_ledger.entries.headers import NO_CHUNK, EntryHeader, EntryHeaders
from managed_ledger.position import Position

_FEW_ROWS: Final = 32
"""Fewer are counted faster one by one than by numpy."""


@dataclass(slots=True)
class Matched:
    """The messages that a selector has found."""

    rows: Rows = NO_ROWS
    """Whole entries."""
    batches: Mapping[Position, BatchLeft] = field(default_factory=dict)
    """Those of them that hold several messages."""
    parts: dict[MessageId, int] = field(default_factory=dict)
    """Messages of batches, with their delivery times."""
    unknown: int = 0
    """Ids that belong to no scheduled message."""

    @property
    def message_count(self) -> int:
        """How many messages they are: as many as a list would show."""
        return len(self.rows) + sum(one.message_count - 1 for one in self.batches.values()) + len(self.parts)

    def due_count(self, now_ms: int) -> int:
        """Return how many of the messages are due."""
        more = sum(one.message_count - 1 for one in self.batches.values() if one.deliver_at_ms <= now_ms)
        of_parts = sum(deliver_at_ms <= now_ms for deliver_at_ms in self.parts.values())
        if len(self.rows) < _FEW_ROWS:
            times_ms: list[int] = self.rows.deliver_at_ms.tolist()
            return sum(deliver_at_ms <= now_ms for deliver_at_ms in times_ms) + more + of_parts
        return int(np.count_nonzero(self.rows.deliver_at_ms <= now_ms)) + more + of_parts

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
    headers = await schedule.topic.ledger.read_each_header({one.position for one in ids})
    whole: dict[Position, EntryHeader] = {}
    parts: dict[MessageId, int] = {}
    unknown = 0
    turns = Turns()
    for one in dict.fromkeys(ids):
        at, index = one
        header = headers.get(at)
        if header is None or not schedule.is_scheduled(at, header.deliver_at_ms):
            unknown += 1
        elif index is None:
            whole[at] = header
        elif not _has_part(schedule, at, index, header.message_count):
            unknown += 1
        elif header.message_count == 1:
            whole[at] = header
        else:
            parts[one] = header.deliver_at_ms
        await turns.give_way()
    rows = ordered([rows_of_headers(whole), *await _other_chunks(schedule, whole)])
    batches = {
        at: BatchLeft(header.deliver_at_ms, schedule.left_of(at, header.message_count))
        for at, header in whole.items()
        if header.message_count > 1
    }
    parts = {one: deliver_at_ms for one, deliver_at_ms in parts.items() if one.position not in whole}
    return Matched(rows, batches, parts, unknown)


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


async def _other_chunks(schedule: TopicSchedule, whole: Mapping[Position, EntryHeader]) -> list[Rows]:
    """Return the further chunks of the messages of which these entries are chunks."""
    log = schedule.topic.ledger
    # A batch is never divided into chunks. Headers of older versions leave open what is a chunk.
    asked = [at for at, header in whole.items() if header.message_count == 1 and not header.flags & NO_CHUNK]
    if not asked:
        return []
    single = await log.read_headers_at(*columns_of(asked))
    columns = zip(single.deliver_at_ms.tolist(), single.sticky_hashes.tolist(), strict=True)
    wanted: dict[tuple[int, int], set[ChunkedMessage]] = {}
    for column, message in zip(columns, await chunked_messages(log, single), strict=True):
        if message is not None:
            wanted.setdefault(column, set()).add(message)
    found = []
    for (deliver_at_ms, sticky_hash), messages in wanted.items():
        rows = (await schedule.rows(Wanted(deliver_at_ms, deliver_at_ms + 1, sticky_hash))).rows
        rows = rows.take(np.array([at not in whole for at in _positions(rows)], np.bool_))
        neighbours = await log.read_headers_at(rows.ledger_ids, rows.entry_ids)
        is_chunk = [message in messages for message in await chunked_messages(log, neighbours)]
        found.append(rows_at(neighbours.take(np.flatnonzero(is_chunk))))
    return found


def _has_part(schedule: TopicSchedule, at: Position, index: int, message_count: int) -> bool:
    return index < message_count and _is_left(schedule, at, index)


def _is_left(schedule: TopicSchedule, at: Position, index: int) -> bool:
    """Whether a subscription that has not acknowledged the batch still lacks one of its messages."""
    return any(not one.cursor.is_acknowledged(*at) and one.has_part(at, index) for one in schedule.subscriptions)


def _positions(rows: Rows | EntryHeaders) -> list[Position]:
    return list(map(Position, rows.ledger_ids.tolist(), rows.entry_ids.tolist()))
