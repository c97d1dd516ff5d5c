"""No counter of a namespace or of the whole service falls while the service runs, whichever thing ends meanwhile.

Prometheus takes a counter that falls for a restart, and counts all that is left once more. The series of a subscription
or a consumer may end with it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dispatcher.stats import SubscriptionStats
from managed_ledger.config import ManagedLedgerConfig
from postdate.broker.protocol.pb.pulsar_api_pb2 import BaseCommand, CommandSubscribe
from postdate.broker.scheduled.operations import Operations, Progress, Selector
from postdate.broker.scheduled.topic_schedule import TopicSchedule
from postdate.broker.service.service import Service
from postdate.broker.service.topic_lives import REST_AFTER_MS
from postdate.broker.topics.figures import TopicSnapshot
from postdate.broker.topics.limits import DELETE_WHEN_SUBSCRIPTIONS_CAUGHT_UP, InactiveTopicsConfig
from postdate.broker.topics.subscription import Subscription
from postdate.broker.topics.topic import Topic
from postdate.broker.topics.topic_name import TopicName
from postdate.testing import FakeClock
from tests.helpers.fakes.service_fakes import Peer, open_service, subscribe
from tests.helpers.metric_pages import ServiceSnapshot, metrics_text
from tests.helpers.send_frames import send_frame
from tests.helpers.until import until
from tracker.config import TrackerConfig
from tracker.stats import BucketOperation, TrackerCounters, summed

NAME = TopicName.parse("t")
HOUR_MS = 3_600_000
SHARED, KEY_SHARED = CommandSubscribe.Shared, CommandSubscribe.Key_Shared


class CountedLife:
    """A service whose topic t has clients, and which another topic's producer keeps a namespace for."""

    def __init__(self, service: Service, clock: FakeClock) -> None:
        self.service = service
        self.clock = clock
        self.peer = Peer(service)
        self.sums: dict[str, float] = {}
        """When last looked at."""
        self._consumers = 0
        self._sent = 0

    @property
    def topic(self) -> Topic:
        return self.service.topics[NAME]

    def subscription(self, name: str) -> Subscription:
        return self.topic.subscriptions[name]

    def stats(self, name: str) -> SubscriptionStats:
        stats = self.subscription(name).stats()
        assert stats is not None
        return stats

    async def join(self, name: str, **values: Any) -> int:
        """Subscribe from the earliest entry on, with permits; the id of the consumer."""
        self._consumers += 1
        values = {"initialPosition": CommandSubscribe.Earliest} | values
        answer = await subscribe(self.peer, self._consumers, subscription=name, **values)
        assert answer.type == BaseCommand.SUCCESS
        self.ask(self._consumers)
        return self._consumers

    def ask(self, consumer_id: int) -> None:
        """Give permits, which make a dispatcher look at the clock, too."""
        flow = {"consumer_id": consumer_id, "messagePermits": 100}
        self.peer.send(BaseCommand(type=BaseCommand.FLOW, flow=flow))

    async def leave(self, consumer_id: int) -> None:
        await self.look()
        await self.peer.request(BaseCommand.CLOSE_CONSUMER, "close_consumer", consumer_id=consumer_id)

    async def publish(self, *delays_ms: int) -> None:
        """Publish a message with each delay."""
        await self.peer.request(BaseCommand.PRODUCER, "producer", topic="t", producer_id=1, producer_name="p")
        before = self.topic.entries_in_total
        for delay_ms in delays_ms:
            self._sent += 1
            self.peer.send_bytes(send_frame(self._sent, deliver_at_ms=self.clock() + delay_ms))
        await until(lambda: self.topic.entries_in_total == before + len(delays_ms))
        await self.topic.ledger.committed()
        await self.peer.request(BaseCommand.CLOSE_PRODUCER, "close_producer", producer_id=1)

    def change(self) -> Operations:
        """Change what is scheduled, of all subscriptions."""
        subscriptions = list(self.topic.subscriptions.values())

        def new_schedule() -> TopicSchedule:
            return TopicSchedule(self.topic, self.service.catalog, subscriptions, self.clock, has_in_hand=True)

        return Operations(self.topic, new_schedule, now_ms=self.clock, early_ms=0, progress=Progress())

    async def look(self) -> None:
        """Look at every counter of `/metrics` that is of no single topic."""
        text = b"".join([chunk async for chunk in self.service.metrics()]).decode()
        before, self.sums = (
            self.sums,
            {
                " ".join((sample.name, *(value for name, value in sorted(sample.labels.items())))): sample.value
                for family in text_string_to_metric_families(text)
                for sample in family.samples
                # Pulsar calls the counters of operations gauges.
                if family.type in ("counter", "histogram") or "bucket_op" in sample.name
                if "topic" not in sample.labels
            },
        )
        now = {name: self.sums.get(name, 0) for name in before}
        assert {name: (value, now[name]) for name, value in before.items() if now[name] < value} == {}


Event = Callable[[CountedLife], Awaitable[None]]


async def delayed_messages_come(life: CountedLife) -> None:
    consumer = await life.join("s")
    await life.publish(60_000, 61_000, HOUR_MS, HOUR_MS, HOUR_MS, 2 * HOUR_MS)
    await until(lambda: life.stats("s").msg_delayed == 6)
    life.clock.now_ms += 90_000
    life.ask(consumer)
    await until(lambda: life.stats("s").consumers[0].msg_out_counter == 2)
    await life.leave(consumer)


async def a_subscription_changes_its_type(life: CountedLife) -> None:
    for kind in (SHARED, CommandSubscribe.Failover, KEY_SHARED):
        consumer = await life.join("s", subType=kind)
        await until(lambda: life.stats("s").consumers[0].msg_out_counter)
        await life.leave(consumer)


async def a_dispatcher_has_a_defect(life: CountedLife) -> None:
    await life.join("s")
    dispatcher = life.subscription("s").dispatcher
    assert dispatcher is not None
    dispatcher.stop_for_defect(KeyError(0))
    await life.look()
    await life.leave(await life.join("s"))


async def a_subscription_is_moved_back(life: CountedLife) -> None:
    consumer = await life.join("s")
    await until(lambda: life.stats("s").consumers[0].msg_out_counter)
    await life.peer.request(BaseCommand.SEEK, "seek", consumer_id=consumer, message_publish_time=0)
    consumer = await life.join("s")
    await until(lambda: life.stats("s").consumers[0].msg_out_counter)
    await life.leave(consumer)


async def a_reader_comes_and_goes(life: CountedLife) -> None:
    consumer = await life.join("reader", durable=False, subType=CommandSubscribe.Exclusive)
    await until(lambda: life.stats("reader").consumers[0].msg_out_counter)
    await life.leave(consumer)
    assert "reader" not in life.topic.subscriptions


async def a_subscription_is_deleted(life: CountedLife) -> None:
    consumer = await life.join("gone")
    await until(lambda: life.stats("gone").consumers[0].msg_out_counter)
    await until(lambda: life.stats("gone").msg_delayed)
    await life.look()
    await life.peer.request(BaseCommand.UNSUBSCRIBE, "unsubscribe", consumer_id=consumer)
    assert "gone" not in life.topic.subscriptions


async def messages_are_cancelled_and_moved(life: CountedLife) -> None:
    for delay_ms in (10 * HOUR_MS, 20 * HOUR_MS):
        await life.publish(delay_ms)
    now_ms = life.clock()
    await life.change().cancel(Selector(from_ms=now_ms + 19 * HOUR_MS))
    await life.change().move(Selector(from_ms=now_ms + 9 * HOUR_MS), lambda times_ms: times_ms + 1)


async def the_topic_rests_and_is_opened_again(life: CountedLife) -> None:
    before = life.topic
    life.clock.now_ms += REST_AFTER_MS
    await life.service.jobs.close_unused()
    assert NAME not in life.service.topics
    await life.look()
    assert await life.service.topics.get_or_create(NAME) is not before


async def the_topic_rests_with_what_a_reader_left(life: CountedLife) -> None:
    """A defect sends the reader away, and it does not come back."""
    await life.join("lost reader", durable=False, subType=SHARED)
    await until(lambda: life.stats("lost reader").consumers[0].msg_out_counter)
    dispatcher = life.subscription("lost reader").dispatcher
    assert dispatcher is not None
    dispatcher.stop_for_defect(KeyError(0))
    await the_topic_rests_and_is_opened_again(life)
    assert "lost reader" not in life.topic.subscriptions


async def a_connection_is_lost(life: CountedLife) -> None:
    await life.join("s")
    await until(lambda: life.stats("s").consumers[0].msg_out_counter)
    life.peer.connection.connection_lost(None)
    await until(lambda: not life.topic.is_used)
    life.peer = Peer(life.service)


async def the_topic_is_deleted(life: CountedLife) -> None:
    await the_topic_rests_and_is_opened_again(life)
    for subscription in life.topic.subscriptions.values():
        subscription.cursor.acknowledge_cumulative(life.topic.ledger.last_position)
    life.clock.now_ms += 2 * HOUR_MS
    await life.service.jobs.delete_inactive()
    assert not life.service.topics.exists(NAME)


EVENTS: tuple[Event, ...] = (
    delayed_messages_come,
    a_subscription_changes_its_type,
    a_dispatcher_has_a_defect,
    a_subscription_is_moved_back,
    a_reader_comes_and_goes,
    a_subscription_is_deleted,
    messages_are_cancelled_and_moved,
    the_topic_rests_and_is_opened_again,
    a_reader_comes_and_goes,
    the_topic_rests_with_what_a_reader_left,
    a_subscription_changes_its_type,
    a_connection_is_lost,
    the_topic_is_deleted,
    delayed_messages_come,
)
COUNTED_IN_THE_END = (
    *("pulsar_in_messages_total", "pulsar_in_bytes_total", "pulsar_out_messages_total", "pulsar_out_bytes_total"),
    *("postdate_dispatcher_rebuilds_total", "postdate_scheduled_cancelled_total"),
    *("postdate_scheduled_rescheduled_total", "postdate_entries_read_total"),
    *("postdate_delayed_reread_at_recovery_total", "postdate_delivery_lateness_seconds_count"),
)


async def start(folder: Path, clock: FakeClock, *, is_index_shared: bool, **values: Any) -> CountedLife:
    """Open a service that seals buckets of two messages, and has another topic in the namespace."""
    service = await open_service(
        folder,
        clock,
        tracker=TrackerConfig(
            index_count_per_bucket_min=2, index_count_at_close_min=1, is_index_shared=is_index_shared
        ),
        managed_ledger=ManagedLedgerConfig(entries_per_ledger_max=3),
        inactive_topics=InactiveTopicsConfig(
            is_deleted=True, mode=DELETE_WHEN_SUBSCRIPTIONS_CAUGHT_UP, inactive_s_max=HOUR_MS // 1_000
        ),
        **values,
    )
    other = Peer(service)
    await other.request(BaseCommand.PRODUCER, "producer", topic="other", producer_id=1, producer_name="p")
    return CountedLife(service, clock)


INDEXES = pytest.mark.parametrize(
    "is_index_shared", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["own indexes", "shared index"]
)


@INDEXES
@pytest.mark.parametrize("has_topic_metrics", [False, True], ids=["by namespace", "by topic"])
def test_no_sum_of_a_namespace_or_of_the_service_ever_falls(
    tmp_path: Path, *, has_topic_metrics: bool, is_index_shared: bool
) -> None:
    async def story() -> None:
        clock = FakeClock(1_800_000_000_000)
        life = await start(tmp_path, clock, is_index_shared=is_index_shared, has_topic_metrics=has_topic_metrics)
        for event in EVENTS:
            await event(life)
            await life.look()
        counted = {name.split()[0] for name, value in life.sums.items() if value}
        assert "pulsar_delayed_message_index_bucket_op_count" in counted
        assert has_topic_metrics or counted.issuperset(COUNTED_IN_THE_END)
        await life.service.close()

    asyncio.run(story())


@INDEXES
def test_a_topic_that_is_closed_after_a_scrape_has_begun_still_has_its_counts(
    tmp_path: Path, *, is_index_shared: bool
) -> None:
    """A scrape takes the list of topics first, and the figures of each in its turn."""

    async def story() -> None:
        life = await start(tmp_path, FakeClock(1_800_000_000_000), is_index_shared=is_index_shared)
        await delayed_messages_come(life)
        topic = life.topic
        await until(lambda: all(counts(topic.metrics())))
        before = counts(topic.metrics())
        await life.service.topics.close(topic)

        assert counts(topic.metrics()) == before
        await life.service.close()

    def counts(figures: TopicSnapshot) -> tuple[int, ...]:
        (one,) = figures.subscriptions
        index = (
            summed(figures.shared_index, figures.index_counters_before, one.tracker, one.index_counters_before)
            or TrackerCounters()
        )
        create = index.operations[BucketOperation.CREATE]
        return figures.messages_in_total, one.counters.messages_out, one.counters.entries_read, min(create.succeed, 1)

    asyncio.run(story())


@pytest.mark.parametrize("is_by_topic", [False, True], ids=["by namespace", "by topic"])
@pytest.mark.parametrize("going", ["s", "t"], ids=["before its turn came", "after it"])
def test_a_subscription_that_goes_or_comes_during_a_scrape_is_counted_once_or_in_the_next_one(
    tmp_path: Path, going: str, *, is_by_topic: bool
) -> None:
    """A scrape takes the list of subscriptions of a topic first, and the figures of each in its turn."""

    async def story() -> None:
        life = await start(tmp_path, FakeClock(1_800_000_000_000), is_index_shared=False)
        consumers = {name: await life.join(name) for name in ("t", "s")}
        await life.publish(0, 0)
        await until(lambda: all(life.stats(name).consumers[0].msg_out_counter == 2 for name in consumers))
        assert sent(life.topic.metrics_in_parts()) == 4

        parts = life.topic.metrics_in_parts()
        begun = [next(parts)]
        await life.peer.request(BaseCommand.UNSUBSCRIBE, "unsubscribe", consumer_id=consumers[going])
        for name in ("new", going):
            await life.join(name)
            await until(lambda name=name: life.stats(name).consumers[0].msg_out_counter == 2)
        assert sent([*begun, *parts]) == 4
        # In the series of a topic a deleted subscription is not counted any more.
        assert sent(life.topic.metrics_in_parts()) == (6 if is_by_topic else 8)
        await life.service.close()

    def sent(parts: Iterable[TopicSnapshot]) -> float:
        snapshot = ServiceSnapshot("standalone", connection_count=0, topics=list(parts), is_by_topic=is_by_topic)
        found = [
            sample
            for family in text_string_to_metric_families(metrics_text(snapshot).decode())
            for sample in family.samples
        ]
        assert len({(one.name, frozenset(one.labels.items())) for one in found}) == len(found)
        assert [one.value for one in found if one.name == "pulsar_topics_count"] == [1]
        return sum(one.value for one in found if one.name == "pulsar_out_messages_total")

    asyncio.run(story())
