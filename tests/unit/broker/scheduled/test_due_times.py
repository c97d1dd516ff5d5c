"""When the next and the last messages come due, and how many are overdue, as metrics tell it.

The logs are too long to be kept in memory.
"""

from pathlib import Path
from typing import Any

import pytest

from dispatcher.dispatcher import Dispatcher
from managed_ledger.errors import StoreCorruptedError
from managed_ledger.managed_ledger import ManagedLedger
from managed_ledger.reading.selection import RowsRead
from postdate.broker.protocol.pb.pulsar_api_pb2 import BaseCommand
from postdate.broker.scheduled.catalog import ScheduleCatalog
from postdate.broker.scheduled.delayed_counts import COUNTING_SHARE, COUNTING_SHARE_WHILE_SENT, count_delayed
from postdate.broker.service.service import Service
from postdate.broker.service.topic_lives import REST_AFTER_MS
from postdate.broker.topics.figures import ScheduledCounts
from postdate.broker.topics.pause import PauseState
from postdate.broker.topics.topic import Topic
from postdate.testing import FakeClock
from tests.helpers.service_lives import HOUR_MS, NAME, START_MS, play, subscribe
from tests.helpers.until import until

LONG = 9
"""The most entries of a log that is not long in these tests; theirs have ten."""


async def _publish(topic: Topic, *hours: int) -> None:
    for one in hours:
        await topic.ledger.append(b"x", publish_time_ms=START_MS, deliver_at_ms=START_MS + one * HOUR_MS)


async def _ten(service: Service, clock: FakeClock) -> None:
    """Ten messages, one an hour from one hour on, and a consumer without permits."""
    await subscribe(service)
    await _publish(await service.topics.get_or_create(NAME), *range(1, 11))


async def _read_to_the_end(topic: Topic) -> Dispatcher:
    dispatcher = topic.subscriptions["s"].dispatcher
    assert dispatcher is not None
    await until(lambda: dispatcher.has_read_all)
    return dispatcher


async def _told(topic: Topic, clock: FakeClock, at_s: float = 0.0, ends_s: float | None = None) -> list[int | None]:
    """Return in how many hours from the start the next and the last message come due, as metrics tell it.

    Args:
        topic: The topic.
        clock: The time.
        at_s: When a count of the log begins.
        ends_s: When it ends.
    """
    times_s = iter([at_s, at_s if ends_s is None else ends_s])
    await count_delayed(topic, ScheduleCatalog(), clock, kept_entries_max=LONG, monotonic_s=lambda: next(times_s))
    figures = topic.metrics()
    times = figures.next_deliver_at_ms, figures.last_deliver_at_ms
    return [(one - START_MS) // HOUR_MS if one else one for one in times]


def test_before_a_consumer_comes_the_log_says_what_is_due_next(tmp_path: Path) -> None:
    async def after(service: Service, clock: FakeClock) -> None:
        topic = await service.topics.get_or_create(NAME)
        clock.now_ms += 3 * HOUR_MS

        assert topic.subscriptions["s"].dispatcher is None
        assert await _told(topic, clock) == [4, 10]

    play(tmp_path, _ten, after)


@pytest.mark.parametrize("share", [COUNTING_SHARE, COUNTING_SHARE_WHILE_SENT])
def test_between_two_counts_the_times_of_the_last_one_tell(tmp_path: Path, share: float) -> None:
    """Counting takes from 100 to 101 s, and a small share of the time."""

    async def with_a_consumer(service: Service, clock: FakeClock) -> None:
        await _ten(service, clock)
        await _read_to_the_end(service.topics[NAME])
        await story(service, clock)

    async def story(service: Service, clock: FakeClock) -> None:
        topic = await service.topics.get_or_create(NAME)
        not_yet_s = 101 + 1 / share - 0.1
        clock.now_ms += 2 * HOUR_MS
        assert await _told(topic, clock, 100, 101) == [3, 10]
        topic.subscriptions["s"].cancel([topic.ledger.first_position._replace(entry_id=2)])
        assert await _told(topic, clock, not_yet_s) == [3, 10]
        assert await _told(topic, clock, not_yet_s + 0.2) == [4, 10]

    play(tmp_path, *([with_a_consumer] if share == COUNTING_SHARE_WHILE_SENT else [_ten, story]))


def test_what_is_not_known_is_not_called_none(tmp_path: Path) -> None:
    """All of the last count have come due, and a message was published since then."""

    async def after(service: Service, clock: FakeClock) -> None:
        topic = await service.topics.get_or_create(NAME)
        assert await _told(topic, clock, 100, 101) == [1, 10]
        await _publish(topic, 12)
        clock.now_ms += 10 * HOUR_MS

        assert await _told(topic, clock, 102) == [None, 12]
        assert await _told(topic, clock, 200) == [12, 12]
        topic.subscriptions["s"].cancel([topic.ledger.last_confirmed_position])
        assert await _told(topic, clock, 300) == [0, 0]
        await _publish(topic, 11)
        clock.now_ms += 2 * HOUR_MS
        assert await _told(topic, clock, 301) == [0, 0]

    play(tmp_path, _ten, after)


async def _samples(service: Service, name: str = "postdate_next_due_timestamp_seconds") -> list[str]:
    await service.jobs.count_delayed()
    text = b"".join([chunk async for chunk in service.metrics()]).decode()
    return [line.rpartition(" ")[2] for line in text.splitlines() if line.startswith(f"{name}{{")]


async def _waiting(topic: Topic, clock: FakeClock, at_s: float) -> tuple[ScheduledCounts | None, int]:
    """Return how many messages are delayed, overdue and in hand, and how many entries a pause holds."""
    await _told(topic, clock, at_s)
    figures = topic.subscriptions["s"].metrics()
    return figures.scheduled, figures.held_by_pause


def test_what_is_due_and_at_no_consumer_is_overdue_and_may_be_held(tmp_path: Path) -> None:
    async def story(service: Service, clock: FakeClock) -> None:
        peer = await subscribe(service)
        topic = await service.topics.get_or_create(NAME)
        await _publish(topic, *range(1, 11))
        dispatcher = await _read_to_the_end(topic)
        # It has no delivery time, and is none of them.
        await topic.ledger.append(b"x", publish_time_ms=START_MS)
        assert await _waiting(topic, clock, 100) == ((10, 0, 0), 0)
        clock.now_ms += 3 * HOUR_MS
        assert await _waiting(topic, clock, 200) == ((7, 3, 0), 0)

        peer.send(BaseCommand(type=BaseCommand.FLOW, flow={"consumer_id": 1, "messagePermits": 2}))
        await until(lambda: dispatcher.consumers and dispatcher.stats().consumers[0].pending_entries == 2)

        assert await _waiting(topic, clock, 300) == ((7, 1, 2), 0)
        await topic.subscriptions["s"].set_pause(PauseState(paused_since_ms=clock()))
        clock.now_ms += HOUR_MS
        assert await _waiting(topic, clock, 400) == ((6, 2, 2), 3)

    play(tmp_path, story)


def test_without_a_consumer_what_is_due_is_overdue_and_what_was_just_published_is_not(tmp_path: Path) -> None:
    async def after(service: Service, clock: FakeClock) -> None:
        topic = await service.topics.get_or_create(NAME)
        clock.now_ms += 3 * HOUR_MS
        await _told(topic, clock, 100, 101)
        # The count of before is still the last one.
        await _publish(topic, 12, 13)
        await _told(topic, clock, 102)

        assert topic.subscriptions["s"].metrics().scheduled == (7, 3, 0)

    play(tmp_path, _ten, after)


def test_a_resting_topic_has_overdue_messages_from_the_first_one_on(tmp_path: Path) -> None:
    async def after(service: Service, clock: FakeClock) -> None:
        await service.topics.get_or_create(NAME)
        clock.now_ms += REST_AFTER_MS
        await service.jobs.close_unused()
        assert NAME not in service.topics

        async def states() -> list[str]:
            names = [f"postdate_subscription_{one}" for one in ("delayed", "overdue", "in_hand")]
            return [sample for name in names for sample in await _samples(service, name)]

        assert await states() == ["10.0", "0.0", "0.0"]
        clock.now_ms += 2 * HOUR_MS
        assert await states() == ["9.0", "1.0", "0.0"]
        clock.now_ms += 8 * HOUR_MS
        assert await states() == ["0.0", "10.0", "0.0"]

    play(tmp_path, _ten, after)


def test_of_a_log_that_cannot_be_read_there_is_no_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object, **__: object) -> RowsRead:
        raise StoreCorruptedError("the disk is gone")

    async def after(service: Service, clock: FakeClock) -> None:
        await service.topics.get_or_create(NAME)
        with monkeypatch.context() as patched:
            patched.setattr(ManagedLedger, "read_rows", fail)
            assert await _samples(service) == []
        assert await _samples(service) == ["1.8000036e+09"]

    play(tmp_path, _ten, after)


def test_a_resting_topic_tells_no_time_that_has_passed(tmp_path: Path) -> None:
    async def after(service: Service, clock: FakeClock) -> None:
        await service.topics.get_or_create(NAME)
        clock.now_ms += REST_AFTER_MS
        await service.jobs.close_unused()
        assert NAME not in service.topics
        (next_due,) = await _samples(service)
        assert float(next_due) == (START_MS + HOUR_MS) / 1000

        clock.now_ms += HOUR_MS
        assert await _samples(service) == []
        clock.now_ms += 9 * HOUR_MS
        assert await _samples(service) == ["0.0"]

    play(tmp_path, _ten, after)


def test_a_scrape_reads_numbers_and_never_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the first count of the log it is not known what of a backlog is due."""
    reads: list[object] = []
    read_rows = ManagedLedger.read_rows

    async def read_and_note(log: ManagedLedger, *values: Any, **named: Any) -> RowsRead:
        reads.append(log)
        return await read_rows(log, *values, **named)

    async def after(service: Service, clock: FakeClock) -> None:
        await service.topics.get_or_create(NAME)
        monkeypatch.setattr(ManagedLedger, "read_rows", read_and_note)

        async def overdue() -> list[str]:
            text = b"".join([chunk async for chunk in service.metrics()]).decode()
            return [line.rpartition(" ")[2] for line in text.splitlines() if line.startswith(f"{name}{{")]

        name = "postdate_subscription_overdue"
        clock.now_ms += 3 * HOUR_MS
        assert (await overdue(), reads) == ([], [])
        await service.jobs.count_delayed()
        counted = len(reads)
        assert counted
        assert (await overdue(), len(reads)) == (["3.0"], counted)

    play(tmp_path, _ten, after)
