"""The promises of `BucketSnapshotStorage`, tested over every implementation."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from snapshot_storage.errors import BucketNotFoundError, SnapshotCorruptedError, StorageClosedError
from snapshot_storage.rocksdb.snapshots import RocksDBBucketSnapshotStorage
from snapshot_storage.storage import BucketSnapshotInfo, BucketSnapshotStorage, SegmentRange
from tests.helpers.storages.s3_servers import REAL_SERVERS
from tests.helpers.storages.snapshot_backends import Backend, MemoryBackend, ObjectFolderBackend, RocksDBBackend

Scenario = Callable[[BucketSnapshotStorage], Coroutine[Any, Any, None]]

_UNKNOWN_IDS = [-1, 0, 999, 2**63 - 1, 2**63, 2**70]

_METADATA = b"\x0a\x02\x10\x14"
_SEGMENTS = [b"first", b"second"]

_OPERATIONS: dict[str, Callable[[BucketSnapshotStorage], Awaitable[object]]] = {
    "create": lambda storage: _create(storage),
    "new writer": lambda storage: storage.new_bucket_snapshot(
        bucket_key="k", topic_name="t", cursor_name="c"
    ).write_segments([]),
    "head": lambda storage: storage.read_bucket_snapshot_head(1),
    "heads": lambda storage: storage.read_bucket_snapshot_heads([1, 2]),
    "segments of several": lambda storage: storage.read_bucket_snapshot_segments([SegmentRange(1, 1, 1)]),
    "delete several": lambda storage: storage.delete_bucket_snapshots([1, 2]),
    "metadata": lambda storage: storage.get_bucket_snapshot_metadata(1),
    "segment": lambda storage: storage.get_bucket_snapshot_segment(1, 1, 1),
    "length": lambda storage: storage.get_bucket_snapshot_length(1),
    "delete": lambda storage: storage.delete_bucket_snapshot(1),
    "list": lambda storage: storage.list_bucket_snapshots(),
    "list topics": lambda storage: storage.list_topics(["t"]),
}


def _run(backend: Backend, scenario: Scenario) -> None:
    """Run a scenario in an event loop of its own, over a started storage."""

    async def started() -> None:
        async with backend.storage() as storage:
            await scenario(storage)

    asyncio.run(started())


async def _create(
    storage: BucketSnapshotStorage,
    metadata: bytes = _METADATA,
    segments: list[bytes] = _SEGMENTS,
    bucket_key: str = "#pulsar.internal.delayed.bucket_1_5",
    topic_name: str = "persistent://public/default/orders",
    cursor_name: str = "billing",
) -> int:
    return await storage.create_bucket_snapshot(
        metadata, segments, bucket_key=bucket_key, topic_name=topic_name, cursor_name=cursor_name
    )


def test_a_snapshot_is_read_as_it_was_written(backend: Backend) -> None:
    """Through the interface and behind it."""

    async def scenario(storage: BucketSnapshotStorage) -> None:
        bucket_id = await _create(storage)

        assert bucket_id >= 0
        assert await storage.get_bucket_snapshot_metadata(bucket_id) == _METADATA
        assert await storage.get_bucket_snapshot_segment(bucket_id, 1, 2) == _SEGMENTS
        assert await storage.get_bucket_snapshot_length(bucket_id) == 4 + 5 + 6
        assert backend.entries(bucket_id) == [_METADATA, *_SEGMENTS]

    _run(backend, scenario)


@pytest.mark.parametrize(
    ("first_entry", "last_entry", "expected"),
    [
        (1, 1, _SEGMENTS[:1]),
        (2, 2, _SEGMENTS[1:]),
        (1, 3, _SEGMENTS),
        (2, 2**40, _SEGMENTS[1:]),
        (3, 3, []),
        (4, 9, []),
        (2**40, 2**40, []),
    ],
)
def test_a_range_is_inclusive_and_ends_with_the_snapshot(
    backend: Backend, first_entry: int, last_entry: int, expected: list[bytes]
) -> None:
    """Past the end there is nothing, and no error; the next snapshot's entries are not meant."""

    async def scenario(storage: BucketSnapshotStorage) -> None:
        bucket_id = await _create(storage)
        await _create(storage)

        assert await storage.get_bucket_snapshot_segment(bucket_id, first_entry, last_entry) == expected

    _run(backend, scenario)


@pytest.mark.parametrize(("first_entry", "last_entry"), [(0, 1), (-1, 1), (2, 1), (0, 0)])
def test_a_range_that_no_one_may_ask_for_is_refused(backend: Backend, first_entry: int, last_entry: int) -> None:
    """Entry 0 is metadata, not a segment; also for a snapshot that does not exist."""

    async def scenario(storage: BucketSnapshotStorage) -> None:
        for bucket_id in (await _create(storage), 999):
            with pytest.raises(ValueError, match="segments are counted from 1"):
                await storage.get_bucket_snapshot_segment(bucket_id, first_entry, last_entry)

    _run(backend, scenario)


@pytest.mark.parametrize(
    ("metadata", "segments"),
    [(b"", []), (b"", [b""]), (b"m", []), (b"", [b"a", b"", b"c"]), (b"\x00" * 9, [b"\x00\xff" * 40_000])],
)
def test_empty_entries_are_entries(backend: Backend, metadata: bytes, segments: list[bytes]) -> None:
    """No metadata, no segments, or segments without a byte."""

    async def scenario(storage: BucketSnapshotStorage) -> None:
        bucket_id = await _create(storage, metadata, segments)

        assert await storage.get_bucket_snapshot_metadata(bucket_id) == metadata
        assert await storage.get_bucket_snapshot_segment(bucket_id, 1, 9) == segments
        assert await storage.get_bucket_snapshot_length(bucket_id) == len(metadata) + len(b"".join(segments))
        assert backend.entries(bucket_id) == [metadata, *segments]

    _run(backend, scenario)


@pytest.mark.parametrize("bucket_id", _UNKNOWN_IDS)
def test_an_unknown_id_is_not_found(backend: Backend, bucket_id: int) -> None:
    """By every read; deleting it is no error."""

    async def scenario(storage: BucketSnapshotStorage) -> None:
        known = await _create(storage)
        for read in (
            storage.read_bucket_snapshot_head(bucket_id),
            storage.get_bucket_snapshot_metadata(bucket_id),
            storage.get_bucket_snapshot_segment(bucket_id, 1, 1),
            storage.get_bucket_snapshot_segment(bucket_id, 1, 100),
            storage.get_bucket_snapshot_length(bucket_id),
        ):
            with pytest.raises(BucketNotFoundError, match=f"no snapshot has the bucket id {bucket_id}"):
                await read

        await storage.delete_bucket_snapshot(bucket_id)

        assert backend.entries(known) == [_METADATA, *_SEGMENTS]

    _run(backend, scenario)


@pytest.mark.parametrize(
    ("metadata", "segments"),
    [
        (_METADATA, _SEGMENTS),
        (b"", []),
        (b"", [b"", b"a"]),
        (b"m" * 3_000_000, [b"first" * 10]),
        (b"m", [b"x" * 9_000_000] * 2),
        (b"m", [b"%d" % k * 200 for k in range(3_000)]),
    ],
    ids=["usual", "empty", "empty segments", "large metadata", "large segments", "many segments"],
)
def test_a_head_says_what_single_reads_say(backend: Backend, metadata: bytes, segments: list[bytes]) -> None:
    """Info and metadata always; of the segments the first ones, as many as the storage likes."""

    async def scenario(storage: BucketSnapshotStorage) -> None:
        bucket_id = await _create(storage, metadata, segments)
        (info,) = await storage.list_bucket_snapshots()

        head = await storage.read_bucket_snapshot_head(bucket_id)

        assert head.info == info
        assert head.info.segment_count == len(segments)
        assert head.metadata == metadata
        assert list(head.first_segments) == segments[: len(head.first_segments)]

    _run(backend, scenario)


def test_segments_of_several_snapshots_come_in_the_order_asked_for(backend: Backend) -> None:
    """A missing snapshot costs its own segments alone."""

    async def scenario(storage: BucketSnapshotStorage) -> None:
        ids = [await _create(storage, bytes([number])) for number in range(3)]
        asked = [SegmentRange(ids[2], 1, 1), SegmentRange(999, 1, 1), SegmentRange(ids[0], 1, 1)]

        last, missing, first = await storage.read_bucket_snapshot_segments(asked)

        assert last == await storage.get_bucket_snapshot_segment(ids[2], 1, 1)
        assert isinstance(missing, BucketNotFoundError)
        assert first == await storage.get_bucket_snapshot_segment(ids[0], 1, 1)
        assert len(await storage.read_bucket_snapshot_segments([])) == 0

    _run(backend, scenario)


def test_several_topics_are_listed_in_one_call(backend: Backend) -> None:
    """Each has its own snapshots, and a topic without any an empty list."""

    async def scenario(storage: BucketSnapshotStorage) -> None:
        ids = [await _create(storage, topic_name=topic_name) for topic_name in ("a", "b", "a", "ab")]

        lists = await storage.list_topics(["b", "none", "a"])

        assert [[info.bucket_id for info in infos] for infos in lists] == [[ids[1]], [], [ids[0], ids[2]]]
        assert await storage.list_topics([]) == []

    _run(backend, scenario)


def test_several_snapshots_are_deleted_in_one_call(backend: Backend) -> None:
    """One that is not there counts as deleted; the others stay."""

    async def scenario(storage: BucketSnapshotStorage) -> None:
        ids = [await _create(storage, bytes([number])) for number in range(4)]

        assert list(await storage.delete_bucket_snapshots([ids[3], 999, ids[1]])) == [None] * 3

        assert {info.bucket_id for info in await storage.list_bucket_snapshots()} == {ids[0], ids[2]}
        assert len(await storage.delete_bucket_snapshots([])) == 0

    _run(backend, scenario)


def test_several_heads_are_each_an_answer_of_their_own(backend: Backend) -> None:
    """In the order asked for. A missing or damaged snapshot costs itself alone."""

    async def create(storage: BucketSnapshotStorage) -> None:
        ids.extend([await _create(storage, bytes([number])) for number in range(5)])

    async def scenario(storage: BucketSnapshotStorage) -> None:
        asked = [ids[4], ids[0], 999, ids[2], ids[4]]
        heads = await storage.read_bucket_snapshot_heads(asked)

        assert [type(head) for head in heads if isinstance(head, Exception)] == [BucketNotFoundError, *damaged_errors]
        for bucket_id, head in zip(asked, heads, strict=True):
            if not isinstance(head, Exception):
                assert head == await storage.read_bucket_snapshot_head(bucket_id)
        assert len(await storage.read_bucket_snapshot_heads([])) == 0

    ids: list[int] = []
    damaged_errors: list[type[Exception]] = []
    _run(backend, create)
    _run(backend, scenario)
    if not isinstance(backend, MemoryBackend):
        backend.flip(ids[2], [0])
        damaged_errors.append(SnapshotCorruptedError)
        _run(backend, scenario)


@pytest.mark.parametrize("backend", [RocksDBBackend, ObjectFolderBackend, *REAL_SERVERS], indirect=True)
@pytest.mark.parametrize("damaged", [{0}, {1}, {2, 4}, {0, 5}])
def test_a_damaged_entry_costs_that_entry_alone(backend: Backend, damaged: set[int]) -> None:
    """Also where a head brings segments along: those before the first damaged one come, the others are asked for."""
    entries = [b"metadata", *(b"%d" % number * 100 for number in range(1, 6))]

    async def written() -> int:
        async with backend.storage() as storage:
            return await _create(storage, entries[0], entries[1:])

    async def scenario(storage: BucketSnapshotStorage) -> None:
        for entry, payload in enumerate(entries):
            if entry in damaged:
                with pytest.raises(SnapshotCorruptedError) as raised:
                    await _entry(storage, bucket_id, entry)
                assert (raised.value.bucket_id, raised.value.entry) == (bucket_id, entry)
            else:
                assert await _entry(storage, bucket_id, entry) == payload
        if 0 in damaged:
            with pytest.raises(SnapshotCorruptedError, match="entry 0 of"):
                await storage.read_bucket_snapshot_head(bucket_id)
        else:
            head = await storage.read_bucket_snapshot_head(bucket_id)
            read = [head.metadata, *head.first_segments]
            assert read == entries[: len(read)]
            assert len(read) <= min(damaged)

    bucket_id = asyncio.run(written())
    backend.flip(bucket_id, damaged)
    _run(backend, scenario)


async def _entry(storage: BucketSnapshotStorage, bucket_id: int, entry: int) -> bytes:
    if entry == 0:
        return await storage.get_bucket_snapshot_metadata(bucket_id)
    return (await storage.get_bucket_snapshot_segment(bucket_id, entry, entry))[0]


@pytest.mark.parametrize(
    ("metadata", "pieces"),
    [
        (b"", []),
        (b"m", [[], [b"a"], [b"", b"b"], []]),
        (b"m" * 100_000, [[b"%d:%d" % (piece, k) * 500 for k in range(20)] for piece in range(100)]),
        (b"m", [[b"%d" % k * 3_000_000] for k in range(8)]),
    ],
    ids=["empty", "small", "many pieces", "large segments"],
)
def test_a_snapshot_may_come_piece_by_piece(backend: Backend, metadata: bytes, pieces: list[list[bytes]]) -> None:
    """It is what it would be if it had come whole, and cannot be seen before it is complete."""

    async def scenario(storage: BucketSnapshotStorage) -> None:
        async with storage.new_bucket_snapshot(bucket_key="k", topic_name="t", cursor_name="c") as writer:
            for piece in pieces:
                await writer.write_segments(piece)
                assert await storage.list_bucket_snapshots() == []
            bucket_id = await writer.commit(metadata)

        segments = [segment for piece in pieces for segment in piece]
        length_bytes = len(metadata) + sum(map(len, segments))
        assert await storage.list_bucket_snapshots() == [
            BucketSnapshotInfo(bucket_id, "k", "t", "c", len(segments), length_bytes)
        ]
        assert await storage.get_bucket_snapshot_metadata(bucket_id) == metadata
        assert await storage.get_bucket_snapshot_segment(bucket_id, 1, len(segments) + 1) == segments
        assert await storage.get_bucket_snapshot_length(bucket_id) == length_bytes
        assert backend.entries(bucket_id) == [metadata, *segments]
        await storage.delete_bucket_snapshot(bucket_id)
        assert backend.entries(bucket_id) is None

    _run(backend, scenario)


def test_a_writer_that_is_left_without_commit_leaves_nothing(backend: Backend) -> None:
    """By an error, by `abort` once or twice, or unused; small or large; now and after another start."""

    async def scenario(storage: BucketSnapshotStorage) -> None:
        before = backend.ids()
        for size in (10, 7_000_000):
            with pytest.raises(RuntimeError, match="the caller's own"):
                await _fail_while_writing(storage, size)
            aborted = storage.new_bucket_snapshot(bucket_key="k", topic_name="t", cursor_name="c")
            await aborted.write_segments([b"x" * size] * 3)
            for _ in range(2):
                await aborted.abort()
            async with storage.new_bucket_snapshot(bucket_key="k", topic_name="t", cursor_name="c"):
                pass
        assert await storage.list_bucket_snapshots() == []
        assert backend.ids() == before == set()

    _run(backend, scenario)


async def _fail_while_writing(storage: BucketSnapshotStorage, size: int) -> None:
    async with storage.new_bucket_snapshot(bucket_key="k", topic_name="t", cursor_name="c") as writer:
        await writer.write_segments([b"x" * size] * 3)
        raise RuntimeError("the caller's own")


def test_a_writer_is_done_after_commit_or_abort(backend: Backend) -> None:
    """Using it again is the caller's mistake; aborting what is committed does nothing."""

    async def scenario(storage: BucketSnapshotStorage) -> None:
        committed = storage.new_bucket_snapshot(bucket_key="k", topic_name="t", cursor_name="c")
        bucket_id = await committed.commit(b"m")
        aborted = storage.new_bucket_snapshot(bucket_key="k", topic_name="t", cursor_name="c")
        await aborted.abort()

        for writer in (committed, aborted):
            with pytest.raises(ValueError, match="begin another one"):
                await writer.write_segments([b"a"])
            with pytest.raises(ValueError, match="begin another one"):
                await writer.commit(b"m")
            await writer.abort()

        assert backend.entries(bucket_id) == [b"m"]
        assert backend.ids() == {bucket_id}

    _run(backend, scenario)


def test_writers_side_by_side_do_not_mix(backend: Backend) -> None:
    """Each has its own id and its own segments, in any order of their commits."""

    async def write(storage: BucketSnapshotStorage, number: int) -> int:
        async with storage.new_bucket_snapshot(bucket_key=f"{number}", topic_name="t", cursor_name="c") as writer:
            for piece in range(5):
                await writer.write_segments([b"%d:%d" % (number, piece) * 200_000])
            return await writer.commit(b"%d" % number)

    async def scenario(storage: BucketSnapshotStorage) -> None:
        ids = await asyncio.gather(*(write(storage, number) for number in range(6)))

        assert len(set(ids)) == 6
        for number, bucket_id in enumerate(ids):
            expected = [b"%d:%d" % (number, piece) * 200_000 for piece in range(5)]
            assert await storage.get_bucket_snapshot_segment(bucket_id, 1, 9) == expected
            assert (await storage.read_bucket_snapshot_head(bucket_id)).info.bucket_key == f"{number}"

    _run(backend, scenario)


@pytest.mark.parametrize("size", [10, 10_000_000])
def test_a_cancelled_writer_leaves_nothing_or_a_whole_snapshot(backend: Backend, size: int) -> None:
    """The writer is cancelled at each of its steps. Listed snapshots are whole."""

    async def write(storage: BucketSnapshotStorage) -> int:
        async with storage.new_bucket_snapshot(bucket_key="k", topic_name="t", cursor_name="c") as writer:
            await writer.write_segments([b"x" * size])
            await writer.write_segments([b"y" * size])
            return await writer.commit(b"m")

    async def scenario(storage: BucketSnapshotStorage) -> None:
        for steps in range(8):
            task = asyncio.ensure_future(write(storage))
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        listed = {info.bucket_id for info in await storage.list_bucket_snapshots()}

        assert backend.ids() == listed
        for bucket_id in listed:
            assert await storage.get_bucket_snapshot_segment(bucket_id, 1, 9) == [b"x" * size, b"y" * size]

    _run(backend, scenario)


def test_a_writer_ends_with_its_storage(backend: Backend) -> None:
    """Closed in between, it cannot go on, aborting is no error, and the next start finds nothing."""

    async def scenario() -> None:
        storage = backend.storage()
        await storage.start()
        writer = storage.new_bucket_snapshot(bucket_key="k", topic_name="t", cursor_name="c")
        await writer.write_segments([b"x" * 7_000_000] * 3)
        await storage.close()
        with pytest.raises(StorageClosedError):
            await writer.commit(b"m")
        await writer.abort()

        await storage.start()
        assert await storage.list_bucket_snapshots() == []
        assert backend.ids() == set()
        await storage.close()

    asyncio.run(scenario())


def test_a_deleted_snapshot_leaves_nothing(backend: Backend) -> None:
    """It is not found, there is no trace of it, its neighbours stay, and deleting again is no error."""

    async def scenario(storage: BucketSnapshotStorage) -> None:
        before, deleted, after = [await _create(storage) for _ in range(3)]

        for _ in range(2):
            await storage.delete_bucket_snapshot(deleted)

        with pytest.raises(BucketNotFoundError):
            await storage.get_bucket_snapshot_metadata(deleted)
        with pytest.raises(BucketNotFoundError):
            await storage.get_bucket_snapshot_segment(deleted, 1, 1)
        assert backend.entries(deleted) is None
        for kept in (before, after):
            assert await storage.get_bucket_snapshot_segment(kept, 1, 2) == _SEGMENTS
        assert [info.bucket_id for info in await storage.list_bucket_snapshots()] == [before, after]

    _run(backend, scenario)


def test_an_id_is_never_given_again(backend: Backend) -> None:
    """Also not that of the last snapshot, after it was deleted and the storage was opened again."""
    seen: list[int] = []

    async def scenario(storage: BucketSnapshotStorage) -> None:
        for _ in range(3):
            seen.append(await _create(storage))
            await storage.delete_bucket_snapshot(seen[-1])

    for _ in range(3):
        _run(backend, scenario)

    assert len(set(seen)) == 9


def test_a_storage_that_begins_anew_gives_other_ids(tmp_path: Path) -> None:
    """A property that outlived its folder must not name the snapshot of another topic."""

    async def first_id(folder: str) -> int:
        async with RocksDBBucketSnapshotStorage(tmp_path / folder) as storage:
            return await _create(storage)

    old = asyncio.run(first_id("moved away"))

    assert asyncio.run(first_id("made instead")) > old


def test_snapshots_are_there_after_the_storage_was_opened_again(backend: Backend) -> None:
    """All of what was said of them, in any storage over the same place."""
    kept: dict[int, BucketSnapshotInfo] = {}

    async def write(storage: BucketSnapshotStorage) -> None:
        for _ in range(3):
            await _create(storage)
        kept.update({info.bucket_id: info for info in await storage.list_bucket_snapshots()})

    async def read(storage: BucketSnapshotStorage) -> None:
        assert {info.bucket_id: info for info in await storage.list_bucket_snapshots()} == kept
        for bucket_id in kept:
            assert await storage.get_bucket_snapshot_metadata(bucket_id) == _METADATA
            assert await storage.get_bucket_snapshot_segment(bucket_id, 1, 2) == _SEGMENTS

    _run(backend, write)
    _run(backend, read)


def test_snapshots_are_listed_by_topic_and_cursor(backend: Backend) -> None:
    """All of them, those of one topic, of one cursor, of both; in order of id; names are any text."""

    async def scenario(storage: BucketSnapshotStorage) -> None:
        names = [("t", "c"), ("t", "d"), ("u", "c"), ("t", "c"), ("persistent://a/ä/\x00☃", "c / \n'\"")]
        ids = [await _create(storage, topic_name=topic, cursor_name=cursor) for topic, cursor in names]

        async def listed(topic: str | None, cursor: str | None) -> list[int]:
            return [info.bucket_id for info in await storage.list_bucket_snapshots(topic, cursor)]

        assert await listed(None, None) == sorted(ids)
        assert await listed("t", None) == sorted([ids[0], ids[1], ids[3]])
        assert await listed(None, "c") == sorted([ids[0], ids[2], ids[3]])
        assert await listed("t", "c") == [ids[0], ids[3]]
        assert await listed("nobody", None) == await listed("", "") == []
        assert await storage.list_bucket_snapshots(*names[-1]) == [
            BucketSnapshotInfo(ids[-1], "#pulsar.internal.delayed.bucket_1_5", *names[-1], 2, 15)
        ]

    _run(backend, scenario)


def test_snapshots_of_one_key_are_different_ones(backend: Backend) -> None:
    """A retry after a failure may create a second one; both can be found and deleted."""

    async def scenario(storage: BucketSnapshotStorage) -> None:
        first, second = await _create(storage), await _create(storage, segments=[b"other"])

        await storage.delete_bucket_snapshot(first)

        assert first != second
        assert await storage.get_bucket_snapshot_segment(second, 1, 2) == [b"other"]

    _run(backend, scenario)


def test_a_snapshot_does_not_change_with_its_source(backend: Backend) -> None:
    """The caller may reuse its list of segments at once."""

    async def scenario(storage: BucketSnapshotStorage) -> None:
        segments = list(_SEGMENTS)
        bucket_id = await _create(storage, segments=segments)

        segments[0] = b"reused"
        read = await storage.get_bucket_snapshot_segment(bucket_id, 1, 2)
        read[1] = b"reused"

        assert await storage.get_bucket_snapshot_segment(bucket_id, 1, 2) == _SEGMENTS

    _run(backend, scenario)


def test_concurrent_creates_do_not_mix(backend: Backend) -> None:
    """Each gets its own id and finds its own entries."""

    async def scenario(storage: BucketSnapshotStorage) -> None:
        contents = [(f"metadata {k}".encode(), [f"{k}:{s}".encode() for s in range(k)]) for k in range(40)]

        ids = await asyncio.gather(*(_create(storage, *content) for content in contents))

        assert len(set(ids)) == len(contents)
        for bucket_id, (metadata, segments) in zip(ids, contents, strict=True):
            assert backend.entries(bucket_id) == [metadata, *segments]
            assert await storage.get_bucket_snapshot_segment(bucket_id, 1, 99) == segments
        assert [info.bucket_id for info in await storage.list_bucket_snapshots()] == sorted(ids)

    _run(backend, scenario)


def test_reads_beside_a_delete_get_everything_or_not_found(backend: Backend) -> None:
    """Never a part, and never corruption."""

    async def read(storage: BucketSnapshotStorage, bucket_id: int, segments: list[bytes]) -> None:
        try:
            assert await storage.get_bucket_snapshot_segment(bucket_id, 1, len(segments)) == segments
            assert await storage.get_bucket_snapshot_metadata(bucket_id) == _METADATA
        except BucketNotFoundError:
            pass

    async def scenario(storage: BucketSnapshotStorage) -> None:
        segments = [b"x" * k for k in range(200)]
        for _ in range(20):
            bucket_id = await _create(storage, segments=segments)
            reads = [read(storage, bucket_id, segments) for _ in range(4)]
            await asyncio.gather(*reads, *(storage.delete_bucket_snapshot(bucket_id) for _ in range(2)))
            assert backend.entries(bucket_id) is None

    _run(backend, scenario)


@pytest.mark.slow
def test_a_large_snapshot_is_one_snapshot(backend: Backend) -> None:
    """50 MiB of metadata and 20,000 segments: whole, found by range, and gone when deleted."""

    async def scenario(storage: BucketSnapshotStorage) -> None:
        metadata = bytes(range(256)) * (50 * 2**12)
        segments = [k.to_bytes(4) * 175 for k in range(20_000)]
        bucket_id = await _create(storage, metadata, segments)

        assert await storage.get_bucket_snapshot_length(bucket_id) == 50 * 2**20 + 20_000 * 700
        assert await storage.get_bucket_snapshot_metadata(bucket_id) == metadata
        assert await storage.get_bucket_snapshot_segment(bucket_id, 9_998, 10_002) == segments[9_997:10_002]
        assert await storage.get_bucket_snapshot_segment(bucket_id, 1, 20_000) == segments
        await storage.delete_bucket_snapshot(bucket_id)
        assert backend.entries(bucket_id) is None

    _run(backend, scenario)


@pytest.mark.parametrize("operation", _OPERATIONS)
def test_a_storage_works_between_start_and_close(backend: Backend, operation: str) -> None:
    """Before and after there is one error for all methods; opening and closing twice is no error."""

    async def scenario() -> None:
        storage = backend.storage()
        for _ in range(2):
            with pytest.raises(StorageClosedError, match="the storage is not open"):
                await _OPERATIONS[operation](storage)
            await storage.close()
            for _ in range(2):
                await storage.start()
            await _create(storage)
            await storage.list_bucket_snapshots()
            for _ in range(2):
                await storage.close()

    asyncio.run(scenario())


def test_closing_waits_for_calls_in_flight(backend: Backend) -> None:
    """Calls made before `close` are carried out. Their snapshots are there."""

    async def scenario() -> None:
        storage = backend.storage()
        await storage.start()
        creates = [asyncio.ensure_future(_create(storage)) for _ in range(10)]
        await asyncio.sleep(0)

        await asyncio.gather(storage.close(), storage.close())
        ids = await asyncio.gather(*creates)

        await storage.start()
        assert [info.bucket_id for info in await storage.list_bucket_snapshots()] == sorted(ids)
        await storage.close()

    asyncio.run(scenario())


def test_a_cancelled_call_harms_no_other(backend: Backend) -> None:
    """It may take effect or not. Listed snapshots are whole, and the storage goes on."""

    async def scenario(storage: BucketSnapshotStorage) -> None:
        creates = [asyncio.ensure_future(_create(storage)) for _ in range(10)]
        await asyncio.sleep(0)
        for create in creates[::2]:
            create.cancel()
        results = await asyncio.gather(*creates, return_exceptions=True)
        last = await _create(storage)

        listed = [info.bucket_id for info in await storage.list_bucket_snapshots()]

        assert {result for result in results if isinstance(result, int)} | {last} <= set(listed)
        for bucket_id in listed:
            assert await storage.get_bucket_snapshot_segment(bucket_id, 1, 9) == _SEGMENTS

    _run(backend, scenario)
