"""The promises of `BucketSnapshotStorage`, tested over every implementation."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from snapshot_storage.errors import BucketNotFoundError, SnapshotCorruptedError
from snapshot_storage.storage import BucketSnapshotInfo, BucketSnapshotStorage
from tests.helpers.storages.s3_servers import REAL_SERVERS
from tests.helpers.storages.snapshot_backends import Backend, RocksDBBackend

Scenario = Callable[[BucketSnapshotStorage], Coroutine[Any, Any, None]]

_UNKNOWN_IDS = [-1, 0, 999, 2**63 - 1, 2**63, 2**70]

_METADATA = b"\x0a\x02\x10\x14"
_SEGMENTS = [b"first", b"second"]


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
            storage.get_bucket_snapshot_head(bucket_id),
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
    async def scenario(storage: BucketSnapshotStorage) -> None:
        bucket_id = await _create(storage, metadata, segments)
        (info,) = await storage.list_bucket_snapshots()

        head = await storage.get_bucket_snapshot_head(bucket_id)

        assert head.info == info
        assert head.info.segment_count == len(segments)
        assert head.metadata == metadata

    _run(backend, scenario)


@pytest.mark.parametrize("backend", [RocksDBBackend, *REAL_SERVERS], indirect=True)
@pytest.mark.parametrize("damaged", [{0}, {1}, {2, 4}, {0, 5}])
def test_a_damaged_entry_costs_that_entry_alone(backend: Backend, damaged: set[int]) -> None:
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
                await storage.get_bucket_snapshot_head(bucket_id)
        else:
            assert (await storage.get_bucket_snapshot_head(bucket_id)).metadata == entries[0]

    bucket_id = asyncio.run(written())
    backend.flip(bucket_id, damaged)
    _run(backend, scenario)


async def _entry(storage: BucketSnapshotStorage, bucket_id: int, entry: int) -> bytes:
    if entry == 0:
        return await storage.get_bucket_snapshot_metadata(bucket_id)
    return (await storage.get_bucket_snapshot_segment(bucket_id, entry, entry))[0]


@pytest.mark.parametrize(
    ("metadata", "segments"),
    [
        (b"", []),
        (b"m", [b"a", b"", b"b"]),
        (b"m" * 100_000, [b"%d" % k * 500 for k in range(2_000)]),
        (b"m", [b"%d" % k * 3_000_000 for k in range(8)]),
    ],
    ids=["empty", "small", "many segments", "large segments"],
)
def test_a_snapshot_may_be_of_any_size(backend: Backend, metadata: bytes, segments: list[bytes]) -> None:
    """It is read and listed as it was given, and a deletion leaves nothing of it."""

    async def scenario(storage: BucketSnapshotStorage) -> None:
        names = {"bucket_key": "k", "topic_name": "t", "cursor_name": "c"}
        bucket_id = await storage.create_bucket_snapshot(metadata, segments, **names)

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


def test_creates_side_by_side_do_not_mix(backend: Backend) -> None:
    """Each has its own id and its own segments."""

    def segments_of(number: int) -> list[bytes]:
        return [b"%d:%d" % (number, piece) * 200_000 for piece in range(5)]

    async def create(storage: BucketSnapshotStorage, number: int) -> int:
        names = {"bucket_key": f"{number}", "topic_name": "t", "cursor_name": "c"}
        return await storage.create_bucket_snapshot(b"%d" % number, segments_of(number), **names)

    async def scenario(storage: BucketSnapshotStorage) -> None:
        ids = await asyncio.gather(*(create(storage, number) for number in range(6)))

        assert len(set(ids)) == 6
        for number, bucket_id in enumerate(ids):
            assert await storage.get_bucket_snapshot_segment(bucket_id, 1, 9) == segments_of(number)
            assert (await storage.get_bucket_snapshot_head(bucket_id)).info.bucket_key == f"{number}"

    _run(backend, scenario)


@pytest.mark.parametrize("size", [10, 10_000_000])
def test_a_cancelled_create_leaves_nothing_or_a_whole_snapshot(backend: Backend, size: int) -> None:
    """It is cancelled at each of its steps. Listed snapshots are whole."""
    segments = [b"x" * size, b"y" * size]

    async def scenario(storage: BucketSnapshotStorage) -> None:
        for steps in range(8):
            names = {"bucket_key": "k", "topic_name": "t", "cursor_name": "c"}
            task = asyncio.ensure_future(storage.create_bucket_snapshot(b"m", segments, **names))
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        # The threads end first.
        await storage.close()
        await storage.start()
        listed = {info.bucket_id for info in await storage.list_bucket_snapshots()}

        assert backend.ids() == listed
        for bucket_id in listed:
            assert await storage.get_bucket_snapshot_segment(bucket_id, 1, 9) == segments

    _run(backend, scenario)
