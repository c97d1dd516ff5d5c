"""Owners of snapshots: no job deletes a snapshot that another cursor names, or takes another's snapshot for its own."""

import asyncio
from pathlib import Path
from uuid import uuid4

import pytest

from managed_ledger.cursors.cursor_properties import CursorName
from managed_ledger.errors import NameNotFoundError
from postdate.broker.configuration.config import BrokerConfig
from postdate.index.index_copy import is_named
from postdate.index.location import location_at
from postdate.index.opening import Filter
from postdate.pipeline.publishing.cursor_log import CursorLog
from postdate.pipeline.publishing.publication import Published, each_of, publish
from postdate.pipeline.publishing.selection import select
from postdate.pipeline.publishing.staging import StagingFolder, StagingWriter, staging_root
from postdate.pipeline.publishing.storing import BuiltSnapshot
from postdate.pipeline.tasks.bucket_rows import build_bucket
from postdate.pipeline.tasks.merge_rows import NamedBucket, count_buckets
from postdate.snapshot_tools.copy import copy_snapshots
from snapshot_storage.bucket_key import BUCKET_KEY_PREFIX, bucket_key
from snapshot_storage.encoding.columns import DelayedIndexes
from snapshot_storage.rocksdb.snapshots import RocksDBBucketSnapshotStorage
from snapshot_storage.storage import BucketSnapshotInfo
from tests.helpers.live_index import NOW_MS
from tests.helpers.spark.bulk_data import bucket_ids, write_log

A, B = CursorName("a", "billing"), CursorName("a", "sub")
KEY = bucket_key(1, 1)
MADE = build_bucket(DelayedIndexes.of([NOW_MS + 9] * 2, [1] * 2, [0, 1]), step_ms=1, rows_max=-1)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """B has an index of one bucket; a property of A names B's snapshot by mistake."""
    write_log(tmp_path, {"a": [NOW_MS + 9] * 2}, {A: []})
    bucket_id = asyncio.run(_store(tmp_path))
    with CursorLog(tmp_path / "ledgers") as owners:
        owners.put_properties({A: {KEY: str(bucket_id)}, B: {KEY: str(bucket_id)}})
    return tmp_path


async def _store(data: Path) -> int:
    async with RocksDBBucketSnapshotStorage(data / "snapshots") as storage:
        return await storage.create_bucket_snapshot(
            MADE.metadata, MADE.segments, bucket_key=KEY, topic_name=B.topic, cursor_name=B.cursor
        )


def _ids(data: Path) -> list[int]:
    async def ids() -> list[int]:
        async with RocksDBBucketSnapshotStorage(data / "snapshots", is_read_only=True) as storage:
            return sorted(info.bucket_id for info in await storage.list_bucket_snapshots())

    return asyncio.run(ids())


def _published(data: Path, *, is_staged: bool) -> Published:
    """Replace A's index by a bucket that has the very bytes of B's, or by nothing."""
    root = staging_root(data / "snapshots")
    with StagingFolder(root, uuid4().hex) as folder, CursorLog(data / "ledgers") as owners:
        with StagingWriter(folder.path, "0") as writer:
            staged: list[BuiltSnapshot] = []
            if is_staged:
                names = {"topic": A.topic, "cursor": A.cursor, "bucket_key": KEY}
                staged.append(writer.put(MADE.metadata, MADE.segments, row_count=2, **names))

        async def main() -> Published:
            async with RocksDBBucketSnapshotStorage(data / "snapshots") as storage:
                return await publish(each_of(staged), storage, owners, replaced=[A])

        return asyncio.run(main())


def test_a_wrong_property_of_one_costs_another_nothing(data: Path) -> None:
    """The snapshot that A's property named goes from A; B names it too, so it stays."""
    (theirs,) = bucket_ids(data, B)

    published = _published(data, is_staged=False)

    assert published.removed_ids == []
    assert (bucket_ids(data, A), bucket_ids(data, B), _ids(data)) == ([], [theirs], [theirs])


def test_anothers_snapshot_is_not_taken_for_ones_own_though_every_byte_is_the_same(data: Path) -> None:
    """Else the wrong property would stay for ever."""
    (theirs,) = bucket_ids(data, B)

    published = _published(data, is_staged=True)

    (mine,) = bucket_ids(data, A)
    assert published.created_count == 1
    assert mine != theirs
    assert _ids(data) == sorted([mine, theirs])


def test_a_malformed_property_keeps_what_it_seems_to_name_until_it_is_replaced(data: Path) -> None:
    """A rebuild replaces all properties about buckets, and leaves others alone."""
    odd = f"{BUCKET_KEY_PREFIX}_oops"
    with CursorLog(data / "ledgers") as owners:
        (theirs,) = owners.named_ids()
        owners.put_properties({A: {odd: str(theirs), "mine": "1"}, B: {}})
        assert owners.named_ids() == {theirs}

    _published(data, is_staged=True)

    (mine,) = bucket_ids(data, A)
    with CursorLog(data / "ledgers") as owners:
        assert (owners.properties(A), owners.named_ids()) == ({KEY: str(mine), "mine": "1"}, {mine})


def test_a_bucket_that_is_anothers_is_not_merged(data: Path) -> None:
    (theirs,) = bucket_ids(data, B)

    async def main() -> list[str]:
        async with RocksDBBucketSnapshotStorage(data / "snapshots", is_read_only=True) as storage:
            named = [NamedBucket(A, KEY, theirs), NamedBucket(B, KEY, theirs), NamedBucket(B, bucket_key(1, 2), theirs)]
            return [one.error for one in await count_buckets(storage, named)]

    mine, right, other_key = asyncio.run(main())

    assert right == ""
    assert f"it is {KEY} of sub of a" in mine
    assert f"it is {KEY} of sub of a" in other_key


@pytest.mark.parametrize(("cursor", "key", "is_moved"), [(B, KEY, True), (A, KEY, False), (B, bucket_key(1, 2), False)])
def test_a_snapshot_is_moved_already_only_if_all_its_names_say_so(cursor: CursorName, key: str, is_moved: bool) -> None:
    """An id alone proves nothing: each storage gives its own."""
    info = BucketSnapshotInfo(7, key, *cursor, segment_count=1, length_bytes=9)

    assert is_named(info, {(7, *B, KEY)}) == is_moved


@pytest.mark.slow
def test_a_copy_moves_what_its_owner_names_and_leaves_a_wrong_property_alone(data: Path) -> None:
    """The wrong property of A still names the old snapshot, which therefore stays."""
    (old,) = bucket_ids(data, B)
    target = data / "elsewhere"

    copied = asyncio.run(
        copy_snapshots(
            BrokerConfig(data_directory=data),
            location_at(str(target)),
            Filter(),
            lambda _done, _total: None,
            updates_cursors=True,
            deletes_source=True,
        )
    )

    assert (copied.failed, copied.cursors_updated, copied.deleted) == ({}, 1, 0)
    assert bucket_ids(data, B) == _ids(target) == [copied.new_ids[old]]
    assert bucket_ids(data, A) == _ids(data) == [old]


def test_a_selection_that_matches_nothing_is_an_error() -> None:
    """Also where both names are there, and not together."""
    names = [CursorName("persistent://public/default/x", "s2%20%C3%BC"), CursorName("y", "sub")]
    topics = [name.topic for name in names] + ["empty"]

    assert select(names, topics, ["x"], ["s2 ü"]).of(names) == names[:1]
    assert select(names, topics, ["empty"], None).of(names) == []
    for wanted, cursors in ((["z"], None), (None, ["z"]), (["x"], ["sub"]), (["x", "z"], None)):
        with pytest.raises(NameNotFoundError):
            select(names, topics, wanted, cursors)


def test_a_shared_index_is_not_changed_for_one_of_its_subscriptions(tmp_path: Path) -> None:
    """It is the index cursor's, and others wait for its rows."""
    index = CursorName("a", "#index")
    write_log(tmp_path, {"a": [NOW_MS + 9], "b": [NOW_MS + 9]}, {A: [], index: []})
    with CursorLog(tmp_path / "ledgers") as owners:
        assert owners.with_own_index(None, None) == [index, CursorName("b", "sub")]
        assert owners.with_own_index(["a"], None) == [index]
        with pytest.raises(ValueError, match="billing of a shares its index"):
            owners.with_own_index(None, ["billing"])
