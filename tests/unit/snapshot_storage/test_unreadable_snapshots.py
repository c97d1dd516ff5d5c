"""When a snapshot that cannot be read now counts as one that never can."""

import asyncio
from collections.abc import Callable, Coroutine

import pytest

from snapshot_storage.errors import SnapshotCorruptedError, StorageBusyError, StorageUnavailableError
from snapshot_storage.s3.unreadable import Patience, UnreadableSnapshots
from tracker.testing import run_virtually

PATIENCE = Patience(failures_min=3, failing_s_min=10)


class Server:
    """A storage that fails as it is told to, and counts what it is asked."""

    def __init__(self) -> None:
        self.error: Exception | None = StorageUnavailableError("cut")
        self.is_up = True
        self.asked = 0
        self.asked_besides = 0

    async def read(self) -> str:
        self.asked += 1
        if self.error is not None:
            raise self.error
        return "bytes"

    async def answers_besides(self, bucket_id: int) -> bool:
        assert bucket_id == 7
        self.asked_besides += 1
        return self.is_up

    async def outcome(self, snapshots: UnreadableSnapshots, place: object = "head") -> object:
        try:
            return await snapshots.call(7, place, self.read, entry=4)
        except (SnapshotCorruptedError, StorageUnavailableError) as error:
            return type(error)


def played(story: Callable[[Server, UnreadableSnapshots], Coroutine[object, object, None]]) -> None:
    server = Server()
    run_virtually(story(server, UnreadableSnapshots(PATIENCE, server.answers_besides)))


def test_it_takes_so_many_failures_and_so_long() -> None:
    async def story(server: Server, snapshots: UnreadableSnapshots) -> None:
        for _ in range(5):
            assert await server.outcome(snapshots) is StorageUnavailableError
        await asyncio.sleep(10)
        assert server.asked_besides == 0
        with pytest.raises(
            SnapshotCorruptedError, match=r"entry 4 of snapshot of bucket 7 is corrupt: .*: cut"
        ) as raised:
            await snapshots.call(7, "head", server.read, entry=4)
        assert (raised.value.bucket_id, raised.value.entry) == (7, 4)
        # Failed, others answer, failed, others answer.
        assert (server.asked, server.asked_besides) == (7, 2)

    played(story)


def test_while_the_storage_answers_nobody_nothing_is_decided() -> None:
    async def story(server: Server, snapshots: UnreadableSnapshots) -> None:
        server.is_up = False
        for _ in range(100):
            assert await server.outcome(snapshots) is StorageUnavailableError
            await asyncio.sleep(60)
        assert server.asked == 100

    played(story)


def test_a_storage_that_goes_away_between_two_questions_costs_no_snapshot() -> None:
    """It answered for others, failed once more, and answers nobody now."""

    class Flapping(Server):
        async def answers_besides(self, bucket_id: int) -> bool:
            self.asked_besides += 1
            return self.asked_besides % 2 == 1

    async def story() -> None:
        server = Flapping()
        snapshots = UnreadableSnapshots(PATIENCE, server.answers_besides)
        for _ in range(20):
            assert await server.outcome(snapshots) is StorageUnavailableError
            await asyncio.sleep(60)
        assert server.asked_besides > 0

    run_virtually(story())


def test_a_storage_that_comes_back_between_two_questions_gives_what_was_asked() -> None:
    class Returning(Server):
        async def answers_besides(self, bucket_id: int) -> bool:
            self.error = None
            return True

    async def story() -> None:
        server = Returning()
        snapshots = UnreadableSnapshots(PATIENCE, server.answers_besides)
        for _ in range(3):
            assert await server.outcome(snapshots) is StorageUnavailableError
        await asyncio.sleep(60)
        assert await server.outcome(snapshots) == "bytes"

    run_virtually(story())


def test_a_success_and_a_refusal_for_now_are_no_failures() -> None:
    async def story(server: Server, snapshots: UnreadableSnapshots) -> None:
        for _ in range(5):
            server.error = StorageUnavailableError("cut")
            for _ in range(2):
                assert await server.outcome(snapshots) is StorageUnavailableError
                await asyncio.sleep(60)
            server.error = StorageBusyError("slow down")
            for _ in range(5):
                assert await server.outcome(snapshots) is StorageBusyError
            server.error = None
            assert await server.outcome(snapshots) == "bytes"
        assert server.asked_besides == 0

    played(story)


def test_each_place_of_a_snapshot_is_counted_apart_until_one_is_lost() -> None:
    """Then a single failure of another is enough: a damaged snapshot of 20,000 segments must not take 20,000 waits."""

    async def story(server: Server, snapshots: UnreadableSnapshots) -> None:
        for _ in range(2):
            for place in range(10):
                assert await server.outcome(snapshots, place) is StorageUnavailableError
            await asyncio.sleep(60)
        assert server.asked_besides == 0
        assert await server.outcome(snapshots, 0) is SnapshotCorruptedError
        assert await server.outcome(snapshots, 99) is SnapshotCorruptedError
        server.error = None
        assert await server.outcome(snapshots, 100) == "bytes"

    played(story)
