"""Find the messages that a request names by their ids.

An id of one chunk of a chunked message means all of its chunks: the client knows the last one alone, and a consumer
drops a message without all of them. The chunks of a message share time and key, so conditions mean all of them already.
"""

from collections.abc import Collection, Sequence

from managed_ledger.entries.headers import CHUNK, EntryHeaders
from managed_ledger.entries.message_metadata import ChunkedMessage
from managed_ledger.errors import EntriesDamagedError
from managed_ledger.positions.position import Position
from postdate.broker.scheduled.chunks import chunked_messages, is_chunk
from postdate.broker.scheduled.messages import OnDamaged, columns_of
from postdate.broker.scheduled.selection import Rows, Wanted, ordered, rows_of_times
from postdate.broker.scheduled.topic_schedule import TopicSchedule
from postdate.broker.slices import Turns


async def match_ids(schedule: TopicSchedule, ids: Sequence[Position], on_damaged: OnDamaged) -> tuple[Rows, int]:
    """Find the messages of these ids, and with a chunk the other chunks of its message.

    Args:
        schedule: The topic's schedule for the subscriptions that are concerned.
        ids: The ids.
        on_damaged: Told of those whose headers are damaged.

    Returns:
        The messages, and how many ids belong to none that is scheduled.

    Raises:
        LedgerError: The log cannot be read.
    """
    try:
        headers = await schedule.topic.ledger.read_each_header(ids)
    except EntriesDamagedError as error:
        on_damaged(error.entries)
        intact = [at for at in ids if at.entry_id not in error.entries.get(at.ledger_id, ())]
        return await match_ids(schedule, intact, on_damaged)
    found: dict[Position, int] = {}
    chunks: list[Position] = []
    unknown = 0
    turns = Turns()
    for at in dict.fromkeys(ids):
        header = headers.get(at)
        if header is None or not schedule.is_scheduled(at, header.deliver_at_ms):
            unknown += 1
        else:
            found[at] = header.deliver_at_ms
            if header.flags & CHUNK:
                chunks.append(at)
        await turns.give_way()
    if chunks:
        found |= await _other_chunks(schedule, chunks)
    return ordered([rows_of_times(found)]), unknown


async def _other_chunks(schedule: TopicSchedule, asked: Collection[Position]) -> dict[Position, int]:
    """Return all scheduled chunks of the messages of which these entries are chunks."""
    log = schedule.topic.ledger
    single = await log.read_headers_at(*columns_of(asked))
    columns = zip(single.deliver_at_ms.tolist(), single.sticky_hashes.tolist(), strict=True)
    wanted: dict[tuple[int, int], set[ChunkedMessage]] = {}
    for column, message in zip(columns, await chunked_messages(log, single), strict=True):
        if message is not None:
            wanted.setdefault(column, set()).add(message)
    found: dict[Position, int] = {}
    for (deliver_at_ms, sticky_hash), messages in wanted.items():
        rows = await schedule.rows(Wanted(deliver_at_ms, deliver_at_ms + 1, sticky_hash))
        neighbours = await log.read_headers_at(rows.ledger_ids, rows.entry_ids)
        neighbours = neighbours.where(is_chunk(neighbours))
        of_each = await chunked_messages(log, neighbours)
        found |= {
            at: deliver_at_ms
            for at, message in zip(_positions(neighbours), of_each, strict=True)
            if message in messages
        }
    return found


def _positions(rows: EntryHeaders) -> list[Position]:
    return list(map(Position, rows.ledger_ids.tolist(), rows.entry_ids.tolist()))
