"""Portions of a move: every entry once, the chunks of a message together, and never more at a time than is allowed."""

import asyncio
from dataclasses import dataclass

import google_crc32c
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from managed_ledger.entries.message_metadata import header_flags
from managed_ledger.pb.pulsar_metadata_pb2 import MessageMetadata
from managed_ledger.positions.position import Position
from managed_ledger.replacing import Entries
from postdate.broker.scheduled.portions import Portion, portions
from postdate.broker.scheduled.selection import Rows
from tests.helpers.fakes.managed_ledger_fakes import MemoryDatabase, open_store

BYTES_MAX = 2_000


@dataclass(frozen=True)
class Entry:
    """An entry to be published: a chunk of a message, or a message of its own."""

    message: int | None
    chunk: int
    chunk_count: int
    size: int

    def metadata(self) -> MessageMetadata:
        metadata = MessageMetadata(producer_name=f"p-{self.message}", sequence_id=0, publish_time=1)
        if self.message is not None:
            metadata.uuid, metadata.num_chunks_from_msg = f"u-{self.message}", self.chunk_count
            metadata.chunk_id = self.chunk
        return metadata

    def to_bytes(self) -> bytes:
        data = self.metadata().SerializeToString()
        covered = len(data).to_bytes(4, "big") + data + b"x" * self.size
        return b"\x0e\x01" + google_crc32c.value(covered).to_bytes(4, "big") + covered


@st.composite
def logs(draw: st.DrawFn) -> list[Entry]:
    """Chunked messages whose chunks are in order, between each other and other messages; some lack a chunk."""
    sizes = st.integers(0, 1_500)
    counts = draw(st.lists(st.integers(2, 6), max_size=5))
    turns = [message for message, count in enumerate(counts) for _ in range(count)]
    order = draw(st.permutations([*turns, *[None] * draw(st.integers(0, 12))]))
    lost = draw(st.sets(st.integers(0, len(counts)), max_size=2))
    sent = dict.fromkeys(range(len(counts)), 0)
    entries = []
    for message in order:
        if message is None:
            entries.append(Entry(None, 0, 1, draw(sizes)))
            continue
        chunk, sent[message] = sent[message], sent[message] + 1
        if message not in lost or chunk != 1:
            entries.append(Entry(message, chunk, counts[message], draw(sizes)))
    return entries


async def divided(entries: list[Entry], entries_max: int) -> list[list[Entry]]:
    """Return the entries by portion, read from a real log of ledgers of seven entries."""
    store = await open_store(MemoryDatabase(), entries_per_ledger_max=7)
    log = await store.open_managed_ledger("orders")
    at: list[Position] = [
        log.append_nowait(one.to_bytes(), publish_time_ms=1, deliver_at_ms=9, flags=header_flags(one.metadata()))
        for one in entries
    ]
    await log.committed()
    columns = np.array(at, np.int64).reshape(-1, 2)
    rows = Rows(np.full(len(at), 9, np.int64), columns[:, 0], columns[:, 1])
    damaged: list[Entries] = []
    divided_rows = portions(log, rows, entries_max=entries_max, bytes_max=BYTES_MAX, on_damaged=damaged.append)
    found: list[Portion] = [one async for one in divided_rows]
    assert not damaged
    by_position = dict(zip(at, entries, strict=True))
    await store.close()
    assert all(entry is not None for one in found for entry in one.entries)
    return [
        [
            by_position[Position(ledger_id, entry_id)]
            for ledger_id, entry_id in zip(one.headers.ledger_ids.tolist(), one.headers.entry_ids.tolist(), strict=True)
        ]
        for one in found
    ]


def completed_order(entries: list[Entry]) -> list[Entry]:
    """Return the last entries of messages that are complete, in order, one by one: the order of consumption."""
    return [one for one in entries if one.message is None or one.chunk == one.chunk_count - 1]


@given(entries=logs(), entries_max=st.integers(1, 8))
def test_portions_keep_messages_whole_and_stay_within_their_limits(entries: list[Entry], entries_max: int) -> None:
    found = asyncio.run(divided(entries, entries_max))

    everything = [one for portion in found for one in portion]
    assert sorted(map(id, everything)) == sorted(map(id, entries))
    for portion in found:
        messages = {one.message if one.message is not None else id(one) for one in portion}
        if len(messages) > 1:
            assert len(portion) <= entries_max
            assert sum(len(one.to_bytes()) for one in portion) <= BYTES_MAX
    whole = [one for one in entries if one.message is None or _count(entries, one) == one.chunk_count]
    for one in whole:
        (home,) = [portion for portion in found if any(other is one for other in portion)]
        assert one.message is None or _count(home, one) == one.chunk_count
    assert [one for one in completed_order(everything) if one in whole] == completed_order(whole)
    for one in whole:
        chunks = [other.chunk for other in everything if one.message is not None and other.message == one.message]
        assert chunks == sorted(chunks)


def test_the_limit_of_bytes_is_met_and_not_only_kept() -> None:
    """Messages of 900 bytes go two by two, however many entries a portion may have."""
    entries = [Entry(None, 0, 1, 900) for _ in range(5)]

    found = asyncio.run(divided(entries, 100))

    assert [len(portion) for portion in found] == [2, 2, 1]


def test_chunks_of_two_producers_between_each_other_stay_together() -> None:
    entries = [Entry(message, chunk, 3, 10) for chunk in range(3) for message in (0, 1)]

    found = asyncio.run(divided(entries, 2))

    assert [[(one.message, one.chunk) for one in portion] for portion in found] == [
        [(0, 0), (0, 1), (0, 2)],
        [(1, 0), (1, 1), (1, 2)],
    ]


def _count(entries: list[Entry], of: Entry) -> int:
    return sum(one.message == of.message for one in entries)
