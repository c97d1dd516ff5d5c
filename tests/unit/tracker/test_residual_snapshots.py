"""Snapshots of cursors without a tracker: those deleted, in which order, and those left alone."""

import asyncio

import pytest

from postdate.testing import FakeCursor, run_virtually
from snapshot_storage.bucket_key import bucket_key
from snapshot_storage.errors import StorageUnavailableError
from snapshot_storage.memory import MemoryBucketSnapshotStorage
from snapshot_storage.storage import BucketSnapshotInfo
from snapshot_storage.testing import FaultInjectingBucketSnapshotStorage
from tracker.residual_snapshots import ResidualSnapshots, is_named, remove_index_properties


class ResidualWorld:
    """A cursor without a tracker, and a storage with snapshots."""

    def __init__(self) -> None:
        self.stored = MemoryBucketSnapshotStorage()
        self.storage = FaultInjectingBucketSnapshotStorage(self.stored)
        self.residual = ResidualSnapshots(self.storage, timeout_ms=100)
        self.cursor = FakeCursor()

    async def store(self, first: int, last: int, *, topic: str = "t", cursor: str = "c") -> int:
        """Store a snapshot, and let the cursor name it."""
        key = bucket_key(first, last)
        bucket_id = await self.stored.create_bucket_snapshot(
            b"", [], bucket_key=key, topic_name=topic, cursor_name=cursor
        )
        self.cursor.properties[key] = str(bucket_id)
        return bucket_id

    async def trim(self, first_ledger_id: int, is_unattended: bool = True) -> None:
        await self.residual.trim(
            "t", "c", self.cursor, first_ledger_id=first_ledger_id, is_unattended=lambda: is_unattended
        )

    async def ids(self) -> list[int]:
        return [info.bucket_id for info in await self.stored.list_bucket_snapshots()]


@pytest.fixture
def world() -> ResidualWorld:
    return ResidualWorld()


def test_what_a_cursor_has_passed_is_trimmed_and_nothing_else(world: ResidualWorld) -> None:
    async def main() -> None:
        await world.storage.start()
        await world.store(1, 3)
        kept = [await world.store(4, 5), await world.store(2, 7)]
        world.cursor.properties["owner"] = "me"

        await world.trim(5)

        assert await world.ids() == kept
        assert world.cursor.properties.keys() == {bucket_key(4, 5), bucket_key(2, 7), "owner"}

    asyncio.run(main())


def test_a_snapshot_that_could_not_be_deleted_keeps_its_property(world: ResidualWorld) -> None:
    async def main() -> None:
        await world.storage.start()
        await world.store(1, 1)
        world.storage.is_down = True
        with pytest.raises(StorageUnavailableError):
            await world.trim(2)
        assert len(world.cursor.properties) == len(await world.ids()) == 1

        world.storage.is_down = False
        await world.trim(2)

        assert (world.cursor.properties, await world.ids()) == ({}, [])

    asyncio.run(main())


def test_a_crash_between_deleting_and_forgetting_is_made_good(world: ResidualWorld) -> None:
    async def main() -> None:
        await world.storage.start()
        await world.stored.delete_bucket_snapshot(await world.store(1, 1))

        await world.trim(2)

        assert world.cursor.properties == {}

    asyncio.run(main())


def test_the_snapshot_of_another_cursor_is_not_trimmed(world: ResidualWorld) -> None:
    """The property goes, as it does when a tracker finds it."""

    async def main() -> None:
        await world.storage.start()
        alien = await world.store(1, 1, cursor="other")

        await world.trim(2)

        assert (world.cursor.properties, await world.ids()) == ({}, [alien])

    asyncio.run(main())


def test_a_cursor_with_a_tracker_is_left_to_it(world: ResidualWorld) -> None:
    async def main() -> None:
        await world.storage.start()
        await world.store(1, 1)

        await world.trim(2, is_unattended=False)

        assert len(world.cursor.properties) == len(await world.ids()) == 1

    asyncio.run(main())


def test_a_tracker_that_comes_while_a_snapshot_is_deleted_keeps_what_it_names(world: ResidualWorld) -> None:
    """It may have sealed the same ledgers again, under the same key."""

    async def main() -> None:
        await world.storage.start()
        old = await world.store(1, 1)
        answers = iter([True, False])
        await world.residual.trim("t", "c", world.cursor, first_ledger_id=2, is_unattended=lambda: next(answers))
        assert await world.ids() == []
        assert world.cursor.properties == {bucket_key(1, 1): str(old)}

        def put_another() -> bool:
            world.cursor.properties[bucket_key(1, 1)] = "7"
            return True

        await world.residual.trim("t", "c", world.cursor, first_ledger_id=2, is_unattended=put_another)
        assert world.cursor.properties == {bucket_key(1, 1): "7"}

    asyncio.run(main())


def test_snapshots_that_nobody_owns_are_deleted_and_no_others(world: ResidualWorld) -> None:
    """As a crash leaves them between a late create and the end of its watch; an outage is told."""

    async def main() -> None:
        await world.storage.start()
        kept = [await world.store(1, 1), await world.store(1, 1, topic="other", cursor="gone")]
        await world.store(1, 1, cursor="gone")

        def is_owned(info: BucketSnapshotInfo) -> bool:
            return info.cursor_name == "c"

        world.storage.is_down = True
        with pytest.raises(StorageUnavailableError):
            await world.residual.clean_ownerless("t", is_owned)
        assert len(await world.ids()) == 3
        world.storage.is_down = False
        await world.residual.clean_ownerless("t", is_owned)

        assert await world.ids() == kept

    asyncio.run(main())


def test_properties_that_name_what_is_gone_are_removed_and_no_others(world: ResidualWorld) -> None:
    """The storage is asked for snapshots that are not known to exist; an outage is not taken for a loss."""

    async def main() -> None:
        await world.storage.start()
        known, unknown = await world.store(1, 1), await world.store(2, 2)
        await world.stored.delete_bucket_snapshot(await world.store(3, 3))
        world.cursor.properties["#pulsar.internal.delayed.bucket_x"] = "1"
        before = dict(world.cursor.properties)

        world.storage.is_down = True
        with pytest.raises(StorageUnavailableError):
            await world.residual.remove_missing(world.cursor, {known, unknown}, is_unattended=lambda: True)
        world.storage.is_down = False
        assert await world.residual.remove_missing(world.cursor, {known}, is_unattended=lambda: False) == 0
        assert world.cursor.properties == before
        assert await world.residual.remove_missing(world.cursor, {known}, is_unattended=lambda: True) == 1
        # A tracker that is made during the write has read the property, and tells the loss itself.
        world.cursor.properties[bucket_key(3, 3)] = before[bucket_key(3, 3)]
        answers = iter([True, False])
        assert await world.residual.remove_missing(world.cursor, {known}, is_unattended=lambda: next(answers)) == 0

        del before[bucket_key(3, 3)]
        assert world.cursor.properties == before

    asyncio.run(main())


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({bucket_key(1, 2): "7"}, True),
        ({bucket_key(1, 2): "8"}, False),
        # Another key, as a merge leaves none but a tool may, and keys that name no range.
        ({bucket_key(1, 2): "8", bucket_key(1, 3): "7"}, True),
        ({"#pulsar.internal.delayed.bucket_x": "7"}, True),
        ({"owner": "7"}, False),
        ({}, False),
    ],
)
def test_a_snapshot_is_named_by_whatever_property_of_a_bucket_has_its_id(
    properties: dict[str, str], expected: bool
) -> None:
    assert is_named(properties, BucketSnapshotInfo(7, bucket_key(1, 2), "t", "c", 1, 1)) is expected


def test_a_storage_that_does_not_answer_is_not_waited_for_long(world: ResidualWorld) -> None:
    async def main() -> None:
        await world.storage.start()
        await world.store(1, 1)
        world.storage.is_hanging = True
        with pytest.raises(TimeoutError):
            await world.trim(2)
        with pytest.raises(TimeoutError):
            await world.residual.clean_ownerless("t", lambda _: False)
        with pytest.raises(TimeoutError):
            await world.residual.remove_missing(world.cursor, (), is_unattended=lambda: True)
        assert len(world.cursor.properties) == len(await world.ids()) == 1

    run_virtually(main())


def test_a_forgotten_index_leaves_what_is_no_index(world: ResidualWorld) -> None:
    async def main() -> None:
        await world.storage.start()
        await world.store(1, 1)
        await world.store(2, 5)
        world.cursor.properties["owner"] = "me"

        assert await remove_index_properties(world.cursor) == 2
        assert await remove_index_properties(world.cursor) == 0

        assert world.cursor.properties == {"owner": "me"}

    run_virtually(main())
