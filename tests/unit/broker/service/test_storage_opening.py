"""A start while the snapshot storage is away: a short wait, an opening later on, and faults that end the start."""

import asyncio
from collections.abc import Callable

import pytest

from postdate.broker.service.storage_opening import ANSWER_WAIT_S, PATIENCE_S, PAUSE_S_MAX, StorageOpening
from postdate.testing import run_virtually
from snapshot_storage.errors import (
    SnapshotStorageError,
    StorageAccessError,
    StorageClosedError,
    StorageUnavailableError,
)
from snapshot_storage.memory import MemoryBucketSnapshotStorage


class StorageThatStartsLater(MemoryBucketSnapshotStorage):
    """Starts, or not, as a function of the time since the loop began."""

    def __init__(self, start_at: Callable[[float], SnapshotStorageError | None], *, answer_s: float = 0.0) -> None:
        super().__init__()
        self._start_at = start_at
        self._answer_s = answer_s
        self.starts = 0

    async def start(self) -> None:
        self.starts += 1
        await asyncio.sleep(self._answer_s)
        error = self._start_at(now_s())
        if error is not None:
            raise error
        await super().start()


def now_s() -> float:
    return asyncio.get_running_loop().time()


AWAY = StorageUnavailableError("no connection")
REFUSED = StorageAccessError("the bucket is another's")


def test_a_storage_that_is_there_is_open_at_once() -> None:
    async def main() -> None:
        storage = StorageThatStartsLater(lambda _: None)
        opening = StorageOpening(storage)
        opening.begin()
        await opening.settled()
        assert now_s() == 0
        assert opening.problem is None
        assert await storage.list_bucket_snapshots() == []
        await opening.close()

    run_virtually(main())


def test_what_comes_a_moment_later_is_waited_for() -> None:
    async def main() -> None:
        opening = StorageOpening(StorageThatStartsLater(lambda s: AWAY if s < 0.5 * PATIENCE_S else None))
        opening.begin()
        await opening.settled()
        assert opening.problem is None
        assert now_s() < PATIENCE_S

    run_virtually(main())


@pytest.mark.parametrize("answer_s", [0.0, 0.9 * ANSWER_WAIT_S])
def test_what_is_wrong_for_good_ends_the_start(answer_s: float) -> None:
    """Also on a machine that is slow to find out."""

    async def main() -> None:
        storage = StorageThatStartsLater(lambda _: REFUSED, answer_s=answer_s)
        opening = StorageOpening(storage)
        opening.begin()
        with pytest.raises(StorageAccessError, match="another's"):
            await opening.settled()
        assert storage.starts == 1

    run_virtually(main())


def test_a_storage_that_is_away_is_opened_when_it_is_back(caplog: pytest.LogCaptureFixture) -> None:
    """The problem is told once, with why; until then nothing can be asked of the storage."""

    async def main() -> None:
        storage = StorageThatStartsLater(lambda s: AWAY if s < 3_600 else None)
        opening = StorageOpening(storage)
        opening.begin()
        await opening.settled()
        assert now_s() == pytest.approx(PATIENCE_S)
        assert opening.problem == "the snapshot storage is away: no connection"
        with pytest.raises(StorageClosedError):
            await storage.list_bucket_snapshots()

        await asyncio.sleep(3_600)
        await asyncio.sleep(PAUSE_S_MAX)
        assert opening.problem is None
        assert await storage.list_bucket_snapshots() == []
        assert storage.starts < 3_600

    run_virtually(main())
    assert [record.message.partition(";")[0] for record in caplog.records if record.levelname == "WARNING"] == [
        "the snapshot storage is away: no connection"
    ]


def test_a_storage_that_never_answers_lets_the_service_start() -> None:
    async def main() -> None:
        opening = StorageOpening(StorageThatStartsLater(lambda _: None, answer_s=10_000))
        opening.begin()
        await opening.settled()
        assert now_s() == pytest.approx(ANSWER_WAIT_S + PATIENCE_S)
        assert opening.problem == "the snapshot storage is away: it does not answer"
        await opening.close()

    run_virtually(main())


def test_what_turns_out_to_be_wrong_after_an_outage_is_told_loudly_and_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The storage did not answer at the start; an operator may still give back the prefix."""

    async def main() -> None:
        opening = StorageOpening(StorageThatStartsLater(lambda s: AWAY if s < 60 else REFUSED if s < 600 else None))
        opening.begin()
        await opening.settled()
        await asyncio.sleep(120)
        assert opening.problem == "the snapshot storage cannot be used: the bucket is another's"
        await asyncio.sleep(600)
        assert opening.problem is None

    run_virtually(main())
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == [
        "the snapshot storage cannot be used: the bucket is another's; nothing of it is changed, and the log has all "
        "messages"
    ]
