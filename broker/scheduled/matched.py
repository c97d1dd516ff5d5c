"""Find the messages that a request selects, as whole entries and as messages of batches.

An id of one chunk of a chunked message means all of its chunks: the client knows the last one alone, and a consumer
drops a message without all of them. The chunks of a message share time and key, so conditions mean all of them already.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from broker.protocol.entries import metadata_of
from broker.protocol.errors import ProtocolError
from broker.scheduled.messages import PAGE_BYTES_MAX, Chosen, MessageId, fitting, ids_of
from broker.scheduled.selection import NO_ROWS, Rows, Wanted, ordered
from broker.scheduled.topic_schedule import TopicSchedule
from managed_ledger.headers import EntryHeaders
from managed_ledger.managed_ledger import ManagedLedger
from managed_ledger.pb.pulsar_metadata_pb2 import MessageMetadata
from managed_ledger.position import Position


@dataclass(slots=True)
class Matched:
    """The messages that a selector has found."""

    rows: Rows = NO_ROWS
    """Whole entries."""
    parts: dict[MessageId, int] = field(default_factory=dict)
    """Messages of batches, with their delivery times."""
    unknown: int = 0
    """Ids that belong to no scheduled message."""

    def __len__(self) -> int:
        return len(self.rows) + len(self.parts)


async def match_ids(schedule: TopicSchedule, ids: Sequence[MessageId]) -> Matched:
    """Find the messages of these ids, and with a chunk the other chunks of its message.

    Raises:
        LedgerError: The log cannot be read.
    """
    positions = list(dict.fromkeys(one.position for one in ids))
    headers = await schedule.topic.ledger.read_headers_at(*ids_of([MessageId(position) for position in positions]))
    known = await schedule.known(headers)
    deliver_at_ms = dict(zip(_positions(known), known.deliver_at_ms.tolist(), strict=True))
    counts = dict(
        zip(
            zip(headers.ledger_ids.tolist(), headers.entry_ids.tolist(), strict=True),
            headers.message_counts.tolist(),
            strict=True,
        )
    )
    whole: set[Position] = set()
    parts: dict[MessageId, int] = {}
    unknown = 0
    for one in dict.fromkeys(ids):
        at, index = one.position, one.batch_index
        if at not in deliver_at_ms or (index is not None and not _has_part(schedule, at, index, counts[at])):
            unknown += 1
        elif index is None or counts[at] == 1:
            whole.add(at)
        else:
            parts[one] = deliver_at_ms[at]
    rows = known.take(np.array([at in whole for at in _positions(known)], np.bool_))
    rows = await _with_other_chunks(schedule, rows)
    return Matched(rows, {one: at_ms for one, at_ms in parts.items() if one.position not in whole}, unknown)


def match_rows(schedule: TopicSchedule, rows: Rows, chosen: Chosen) -> Matched:
    """Return the rows found by conditions, where of some batches only a part of the messages is chosen.

    Args:
        schedule: The schedule in which they were found.
        rows: All entries that have a message that is meant.
        chosen: The chosen messages of the batches of which others are not meant.
    """
    if not chosen:
        return Matched(rows)
    is_whole = np.array([at not in chosen for at in _positions(rows)], np.bool_)
    batches = rows.take(~is_whole)
    return Matched(
        rows.take(is_whole),
        {
            MessageId(at, index): at_ms
            for at, at_ms in zip(_positions(batches), batches.deliver_at_ms.tolist(), strict=True)
            for index in sorted(chosen[at])
            if _is_left(schedule, at, index)
        },
    )


def batches_in_part(schedule: TopicSchedule, matched: Matched) -> list[Position]:
    """Return the batches that are meant or left in part alone, which no copy can stand for.

    A copy is whole: it would bring back the messages that were acknowledged or cancelled out of the batch.
    """
    found = {one.position for one in matched.parts}
    gone = {Position(*at) for subscription in schedule.subscriptions for at in subscription.batches_in_part()}
    if gone:
        found.update(gone.intersection(_positions(matched.rows)))
    return sorted(found)


async def portion_end(log: ManagedLedger, rows: Rows, begin: int, size: int) -> int:
    """Return the end of a portion of some size, later where it would divide the chunks of a message.

    Chunks that stand apart, as those of two producers that send at once can, may be divided all the same.

    Raises:
        LedgerError: The log cannot be read.
    """
    end = begin + size
    while end < len(rows):
        (metadata,) = await _metadata(log, rows.take(slice(end - 1, end)))
        missing = 0 if metadata is None else metadata.num_chunks_from_msg - 1 - metadata.chunk_id
        if missing <= 0:
            break
        end += missing
    return min(end, len(rows))


async def _with_other_chunks(schedule: TopicSchedule, rows: Rows) -> Rows:
    log = schedule.topic.ledger
    wanted: dict[tuple[int, int], set[tuple[str, str]]] = {}
    headers = await log.read_headers_at(rows.ledger_ids, rows.entry_ids)
    hashes = _hashes(headers)
    for at, at_ms, metadata in zip(
        _positions(rows), rows.deliver_at_ms.tolist(), await _metadata(log, rows), strict=True
    ):
        if metadata is not None and metadata.num_chunks_from_msg > 1:
            wanted.setdefault((at_ms, hashes[at]), set()).add((metadata.producer_name, metadata.uuid))
    there = set(_positions(rows))
    found = [rows]
    for (at_ms, sticky_hash), messages in wanted.items():
        neighbours, _ = await schedule.rows(Wanted(at_ms, at_ms + 1, sticky_hash))
        neighbours = neighbours.take(np.array([at not in there for at in _positions(neighbours)], np.bool_))
        found.append(
            neighbours.take(
                np.array(
                    [
                        one is not None and (one.producer_name, one.uuid) in messages
                        for one in await _metadata(log, neighbours)
                    ],
                    np.bool_,
                )
            )
        )
    return ordered(found)


async def _metadata(log: ManagedLedger, rows: Rows) -> list[MessageMetadata | None]:
    """Return the metadata of each row, None of an entry that is gone or has none that makes sense."""
    headers = await log.read_headers_at(rows.ledger_ids, rows.entry_ids)
    found: dict[Position, MessageMetadata] = {}
    begin = 0
    while begin < len(headers):
        rest = headers.take(slice(begin, len(headers)))
        part = rest.take(slice(0, fitting(rest, PAGE_BYTES_MAX)))
        entries = await log.read_payloads(part.ledger_ids, part.entry_ids)
        for ledger_id, entry_id, entry in zip(part.ledger_ids.tolist(), part.entry_ids.tolist(), entries, strict=True):
            if entry is None:
                continue
            try:
                found[Position(ledger_id, entry_id)] = metadata_of(entry)
            except ProtocolError:
                continue
        begin += len(part)
    return [found.get(at) for at in _positions(rows)]


def _hashes(headers: EntryHeaders) -> dict[Position, int]:
    return {
        Position(ledger_id, entry_id): sticky_hash
        for ledger_id, entry_id, sticky_hash in zip(
            headers.ledger_ids.tolist(), headers.entry_ids.tolist(), headers.sticky_hashes.tolist(), strict=True
        )
    }


def _has_part(schedule: TopicSchedule, at: Position, index: int, message_count: int) -> bool:
    return index < message_count and _is_left(schedule, at, index)


def _is_left(schedule: TopicSchedule, at: Position, index: int) -> bool:
    """Whether a subscription that has not acknowledged the batch still lacks one of its messages."""
    return any(not one.cursor.is_acknowledged(*at) and one.has_part(at, index) for one in schedule.subscriptions)


def _positions(rows: Rows) -> list[Position]:
    return [
        Position(ledger_id, entry_id)
        for ledger_id, entry_id in zip(rows.ledger_ids.tolist(), rows.entry_ids.tolist(), strict=True)
    ]
