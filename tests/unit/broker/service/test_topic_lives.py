"""The life of a topic: opened, closed while it has no clients, listed all the same, opened again, and deleted."""

import asyncio
import gc
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.errors import LedgerWriteError
from managed_ledger.ledger_store import LedgerStore
from postdate.broker.authorization.grants import Action
from postdate.broker.errors import NotAllowedError, TopicClosedError
from postdate.broker.protocol.pb.pulsar_api_pb2 import BaseCommand
from postdate.broker.service.service import Service
from postdate.broker.service.topic_lives import OPENED_AT_ONCE_MAX, REST_AFTER_MS
from postdate.broker.topics.limits import (
    DELETE_WHEN_NO_SUBSCRIPTIONS,
    DELETE_WHEN_SUBSCRIPTIONS_CAUGHT_UP,
    InactiveTopicsConfig,
    LimitsConfig,
)
from postdate.broker.topics.policies import DelayedDeliveryPolicies
from postdate.broker.topics.topic_name import TopicName
from postdate.testing import FakeClock
from tests.helpers import guarded_service
from tests.helpers.fakes.service_fakes import Peer, open_service, subscribe
from tests.helpers.until import until

NAME = TopicName.parse("t")
HOUR_MS = 3_600_000
POLICIES = DelayedDeliveryPolicies(is_active=False, tick_time_ms=1_000, delay_ms_max=0)

Story = Callable[[Service, FakeClock], Awaitable[None]]


def play(folder: Path, story: Story, steady: FakeClock | None = None, **config: Any) -> None:
    async def run() -> None:
        clock = FakeClock(1_800_000_000_000)
        service = await open_service(folder, clock, steady, **config)
        try:
            await story(service, clock)
        finally:
            await service.close()

    asyncio.run(run())


async def _subscribe(service: Service, **more: Any) -> Peer:
    peer = Peer(service)
    request = {"topic": "t", "subscription": "s", "subType": 3, "consumer_id": 1, "initialPosition": 1} | more
    answer = await peer.request(BaseCommand.SUBSCRIBE, "subscribe", **request)
    assert answer.type == BaseCommand.SUCCESS
    return peer


def _is_one_delayed(service: Service) -> Callable[[], bool]:
    def look() -> bool:
        stats = service.topics[NAME].subscriptions["s"].stats()
        return stats is not None and stats.msg_delayed == 1

    return look


async def _leave(peer: Peer) -> None:
    answer = await peer.request(BaseCommand.CLOSE_CONSUMER, "close_consumer", consumer_id=1)
    assert answer.type == BaseCommand.SUCCESS


async def _publish(service: Service, clock: FakeClock, *, delay_ms: int = HOUR_MS) -> None:
    topic = await service.topics.get_or_create(NAME)
    await topic.ledger.append(b"x", publish_time_ms=clock(), deliver_at_ms=clock() + delay_ms)


def test_a_topic_that_nobody_uses_for_a_while_is_closed_and_comes_back_as_it_was(tmp_path: Path) -> None:
    async def story(service: Service, clock: FakeClock) -> None:
        peer = await _subscribe(service)
        await _publish(service, clock)
        await _leave(peer)
        clock.now_ms += REST_AFTER_MS - 1
        await service.jobs.close_unused()
        assert NAME in service.topics
        clock.now_ms += 1
        await service.jobs.close_unused()
        assert NAME not in service.topics
        (figures,) = service.topics.closed_figures()
        assert (figures.name, figures.subscriptions[0].backlog) == (str(NAME), 1)
        assert service.topics.exists(NAME)
        assert service.topics.names("public/default") == [str(NAME)]

        again = await _subscribe(service)

        dispatcher = service.topics[NAME].subscriptions["s"].dispatcher
        assert dispatcher is not None
        await until(lambda: dispatcher.stats().msg_delayed == 1)
        assert list(service.topics.closed_figures()) == []
        await _leave(again)

    play(tmp_path, story)


def test_a_topic_with_a_client_is_never_closed(tmp_path: Path) -> None:
    async def story(service: Service, clock: FakeClock) -> None:
        peer = await _subscribe(service)
        clock.now_ms += 10 * REST_AFTER_MS
        await service.jobs.close_unused()
        assert NAME in service.topics
        # The time counts from when the last client left.
        await _leave(peer)
        await service.jobs.close_unused()
        assert NAME in service.topics

    play(tmp_path, story)


def test_who_asks_for_a_topic_that_is_being_closed_gets_it_opened_again(tmp_path: Path) -> None:
    async def story(service: Service, clock: FakeClock) -> None:
        topic = await service.topics.get_or_create(NAME)
        closing = service.topics.close(topic)

        again = await service.topics.get_or_create(NAME)

        assert closing.done()
        assert again is not topic
        assert again is service.topics[NAME]

    play(tmp_path, story)


def test_delays_that_were_read_before_a_topic_was_closed_outlive_a_change_of_policies(tmp_path: Path) -> None:
    async def story(service: Service, clock: FakeClock) -> None:
        peer = await _subscribe(service)
        await _publish(service, clock)
        dispatcher = service.topics[NAME].subscriptions["s"].dispatcher
        assert dispatcher is not None
        await until(lambda: dispatcher.stats().msg_delayed == 1)
        await _leave(peer)
        await service.topics.close(service.topics[NAME])
        off = DelayedDeliveryPolicies(is_active=False, tick_time_ms=1_000, delay_ms_max=0)
        await service.set_policies(NAME, off)

        await _subscribe(service)

        again = service.topics[NAME].subscriptions["s"].dispatcher
        assert again is not None
        await until(lambda: again.stats().msg_delayed == 1)

    play(tmp_path, story)


def test_an_abandoned_backlog_is_told_after_a_restart_without_opening_its_topic(tmp_path: Path) -> None:
    async def before(service: Service, clock: FakeClock) -> None:
        await _leave(await _subscribe(service))
        await _subscribe(service, subscription="reader", durable=False)
        await _publish(service, clock)
        await _publish(service, clock, delay_ms=2 * HOUR_MS)

    async def after(service: Service, clock: FakeClock) -> None:
        numbers = []
        for hours in (0, 1, 1):
            clock.now_ms += hours * HOUR_MS
            (topic,) = service.topics.closed_figures()
            (one,) = topic.subscriptions
            numbers.append((one.backlog, one.scheduled, topic.next_deliver_at_ms, topic.last_deliver_at_ms))
        start_ms = clock.now_ms - 2 * HOUR_MS
        assert numbers == [
            (2, (2, 0, 0), start_ms + HOUR_MS, start_ms + 2 * HOUR_MS),
            (2, (1, 1, 0), None, start_ms + 2 * HOUR_MS),
            (2, (0, 2, 0), 0, 0),
        ]
        assert service.topics == {}
        await service.topics.delete(await service.topics.get_or_create(NAME))
        assert list(service.topics.closed_figures()) == []

    play(tmp_path, before)
    play(tmp_path, after)


def test_a_topic_that_was_never_closed_in_order_is_visited_once_after_a_start(tmp_path: Path) -> None:
    async def story(service: Service, clock: FakeClock) -> None:
        for number in range(3):
            await service.topics.get_or_create(TopicName.parse(f"t-{number}"))
        # As a kill leaves it.
        for topic in list(service.topics.values()):
            await service.topics.close(topic)
            await service.topics.lives_of(topic.name).numbers.remove(topic.name)
        await service.jobs.visit_unknown()
        assert service.topics == {}
        assert len(list(service.topics.closed_figures())) == 3

    play(tmp_path, story)


def test_topics_are_counted_after_a_start(tmp_path: Path) -> None:
    async def before(service: Service, clock: FakeClock) -> None:
        for number in range(3):
            await service.topics.get_or_create(TopicName.parse(f"t-{number}"))

    async def after(service: Service, clock: FakeClock) -> None:
        text = b"".join([chunk async for chunk in service.metrics()]).decode()
        assert 'pulsar_topics_count{cluster="standalone",namespace="public/default"} 3.0' in text

    play(tmp_path, before)
    play(tmp_path, after)


def test_a_topic_that_is_only_looked_at_rests_when_the_last_look_has_ended(tmp_path: Path) -> None:
    async def story(service: Service, clock: FakeClock) -> None:
        await _leave(await _subscribe(service))
        await _publish(service, clock, delay_ms=HOUR_MS)
        await service.topics.close(service.topics[NAME])

        async with service.topics.visit(NAME) as first:
            async with service.topics.visit(NAME) as second:
                assert first is second is service.topics[NAME]
            clock.now_ms += REST_AFTER_MS
            await service.jobs.close_unused()
            assert NAME in service.topics
        assert NAME not in service.topics
        (figures,) = service.topics.closed_figures()
        assert [one.delayed for one in figures.subscriptions] == [1]

        async with service.topics.visit(NAME):
            await service.topics.existing(NAME)
        async with service.topics.visit(NAME):
            pass
        assert NAME in service.topics
        async with service.topics.visit(TopicName.parse("missing")) as missing:
            assert missing is None

    play(tmp_path, story)


@pytest.mark.parametrize("name", ["delete_inactive", "close_unused"])
def test_a_stop_during_a_job_leaves_the_other_topics_to_the_close(tmp_path: Path, name: str) -> None:
    """Each deletion or closing waits for the log; thousands would take longer than a supervisor waits for the stop."""

    async def story(service: Service, clock: FakeClock) -> None:
        for number in range(100):
            await service.topics.get_or_create(TopicName.parse(f"t-{number}"))
        clock.now_ms += 24 * HOUR_MS
        job = asyncio.ensure_future(getattr(service.jobs, name)())
        await until(lambda: len(service.topics) < 100)
        service.jobs.stop()
        await job
        assert service.topics

    play(tmp_path, story, inactive_topics=InactiveTopicsConfig(is_deleted=name == "delete_inactive"))


def test_a_visit_deletes_nothing_that_a_subscription_to_come_can_ask_for(tmp_path: Path) -> None:
    limits = ManagedLedgerConfig(entries_per_ledger_max=1)

    async def story(service: Service, clock: FakeClock) -> None:
        for _ in range(3):
            await _publish(service, clock, delay_ms=0)
        await service.topics.close(service.topics[NAME])
        async with service.topics.visit(NAME):
            pass
        await _subscribe(service)
        assert service.topics[NAME].subscriptions["s"].cursor.backlog == 3

    play(tmp_path, story, managed_ledger=limits)


def test_what_outlives_its_time_goes_also_where_nobody_comes(tmp_path: Path) -> None:
    async def story(service: Service, clock: FakeClock) -> None:
        await _leave(await _subscribe(service))
        await _publish(service, clock, delay_ms=0)
        await service.topics.close(service.topics[NAME])
        assert next(service.topics.closed_figures()).subscriptions[0].backlog == 1
        clock.now_ms += 61_000

        await service.jobs.expire()

        assert next(service.topics.closed_figures()).subscriptions[0].backlog == 0

    play(tmp_path, story, ttl_ms=60_000)


@pytest.mark.parametrize(
    ("mode", "has_subscription", "has_backlog", "is_deleted"),
    [
        (DELETE_WHEN_NO_SUBSCRIPTIONS, False, True, True),
        (DELETE_WHEN_NO_SUBSCRIPTIONS, True, False, False),
        (DELETE_WHEN_NO_SUBSCRIPTIONS, True, True, False),
        (DELETE_WHEN_SUBSCRIPTIONS_CAUGHT_UP, True, False, True),
        (DELETE_WHEN_SUBSCRIPTIONS_CAUGHT_UP, True, True, False),
        (DELETE_WHEN_SUBSCRIPTIONS_CAUGHT_UP, False, True, True),
    ],
)
def test_an_inactive_topic_is_deleted_by_the_rules_of_the_mode(
    tmp_path: Path, mode: str, has_subscription: bool, has_backlog: bool, is_deleted: bool
) -> None:
    async def story(service: Service, clock: FakeClock) -> None:
        if has_subscription:
            await _leave(await _subscribe(service))
        else:
            await service.topics.get_or_create(NAME)
        if has_backlog:
            await _publish(service, clock)
        clock.now_ms += 29_999
        await service.jobs.delete_inactive()
        assert service.topics.exists(NAME)
        clock.now_ms += 1 + 60_000
        await service.jobs.delete_inactive()

        assert service.topics.exists(NAME) is not is_deleted
        assert (NAME in service.topics) is not is_deleted
        # A consumer that comes again finds a new one.
        await _subscribe(service)
        assert service.topics[NAME].subscriptions["s"].cursor.backlog == (has_backlog and not is_deleted)

    play(tmp_path, story, inactive_topics=InactiveTopicsConfig(is_deleted=True, mode=mode, inactive_s_max=30))


@pytest.mark.parametrize("mode", [DELETE_WHEN_NO_SUBSCRIPTIONS, DELETE_WHEN_SUBSCRIPTIONS_CAUGHT_UP])
def test_a_topic_with_a_client_is_never_deleted(tmp_path: Path, mode: str) -> None:
    async def story(service: Service, clock: FakeClock) -> None:
        peer = Peer(service)
        await peer.request(BaseCommand.PRODUCER, "producer", topic="t", producer_id=1, producer_name="p")
        consumer = await _subscribe(service, topic="u")
        clock.now_ms += HOUR_MS
        await service.jobs.delete_inactive()
        assert len(service.topics) == 2
        await peer.request(BaseCommand.CLOSE_PRODUCER, "close_producer", producer_id=1)
        await _leave(consumer)
        # It counts from when they were there last.
        await service.jobs.delete_inactive()
        assert len(service.topics) == 2

    play(tmp_path, story, inactive_topics=InactiveTopicsConfig(is_deleted=True, mode=mode))


BOTH_MODES = pytest.mark.parametrize("mode", [DELETE_WHEN_NO_SUBSCRIPTIONS, DELETE_WHEN_SUBSCRIPTIONS_CAUGHT_UP])


async def _is_deleted_in_30_s(service: Service, clock: FakeClock) -> None:
    """Assert that a check deletes the topic then, and none before."""
    clock.now_ms += 29_999
    await service.jobs.delete_inactive()
    assert service.topics.exists(NAME)
    clock.now_ms += 1
    await service.jobs.delete_inactive()
    assert not service.topics.exists(NAME)


@BOTH_MODES
@pytest.mark.parametrize("client", ["producer", "refused producer", "dropped producer", "reader", "unsubscribed"])
def test_inactivity_counts_from_when_the_last_client_left(tmp_path: Path, mode: str, client: str) -> None:
    """The last check was long before: a client that left just before the next one keeps its topic the whole time."""

    async def come(peer: Peer) -> None:
        if client in ("reader", "unsubscribed"):
            await subscribe(peer, durable=client == "unsubscribed")
        else:
            await peer.request(BaseCommand.PRODUCER, "producer", topic="t", producer_id=1, producer_name="p")

    async def go(peer: Peer, service: Service) -> None:
        match client:
            case "reader":
                await _leave(peer)
            case "unsubscribed":
                await peer.request(BaseCommand.UNSUBSCRIBE, "unsubscribe", consumer_id=1)
            case "dropped producer":
                (producer,) = service.topics[NAME].producers.values()
                peer.connection.close_producer(producer.producer_id)
            case _:
                await peer.request(BaseCommand.CLOSE_PRODUCER, "close_producer", producer_id=1)

    async def story(service: Service, clock: FakeClock) -> None:
        peer = Peer(service)
        if client == "refused producer":
            await service.topics.get_or_create(NAME)
            clock.now_ms += 29_500
            # Two of them ask for the topic alone; the second is refused, and the first leaves.
            await come(peer)
            exclusive = await peer.request(
                BaseCommand.PRODUCER, "producer", topic="t", producer_id=2, producer_access_mode=1
            )
            assert exclusive.type == BaseCommand.ERROR
        else:
            await come(peer)
            await service.jobs.delete_inactive()
            clock.now_ms += 29_500
        await go(peer, service)
        assert not service.topics[NAME].is_active(mode)
        await _is_deleted_in_30_s(service, clock)

    play(tmp_path, story, inactive_topics=InactiveTopicsConfig(is_deleted=True, mode=mode, inactive_s_max=30))


def test_inactivity_counts_from_when_the_last_consumer_left_its_subscription(tmp_path: Path) -> None:
    async def story(service: Service, clock: FakeClock) -> None:
        peer = await _subscribe(service)
        await service.jobs.delete_inactive()
        clock.now_ms += 29_500
        await _leave(peer)
        await _is_deleted_in_30_s(service, clock)

    mode = DELETE_WHEN_SUBSCRIPTIONS_CAUGHT_UP
    play(tmp_path, story, inactive_topics=InactiveTopicsConfig(is_deleted=True, mode=mode, inactive_s_max=30))


def test_nothing_is_deleted_unless_it_is_asked_for(tmp_path: Path) -> None:
    async def story(service: Service, clock: FakeClock) -> None:
        assert "delete inactive topics" not in [job.name for job in service.housekeeping()]

    play(tmp_path, story)


def test_an_inactive_topic_stays_open_until_it_is_deleted(tmp_path: Path) -> None:
    async def before(service: Service, clock: FakeClock) -> None:
        await service.topics.get_or_create(NAME)

    async def after(service: Service, clock: FakeClock) -> None:
        await service.jobs.delete_inactive()
        assert NAME in service.topics
        clock.now_ms += REST_AFTER_MS
        await service.jobs.close_unused()
        assert NAME in service.topics
        await service.jobs.delete_inactive()
        assert not service.topics.exists(NAME)

    play(tmp_path, before)
    play(tmp_path, after, inactive_topics=InactiveTopicsConfig(is_deleted=True))


def test_a_deletion_that_fails_at_its_last_write_leaves_what_was_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed there, it is the same: without its cursor, the subscription would receive all messages again."""

    async def before(service: Service, clock: FakeClock) -> None:
        await _leave(await _subscribe(service))
        topic = await service.topics.get_or_create(NAME)
        await _publish(service, clock)
        topic.subscriptions["s"].cursor.acknowledge_cumulative(topic.ledger.last_confirmed_position)
        with monkeypatch.context() as patch:
            patch.setattr(LedgerStore, "delete_managed_ledger", _refuse)
            with pytest.raises(LedgerWriteError):
                await service.topics.delete(topic)
        assert service.topics.exists(NAME)

    async def after(service: Service, clock: FakeClock) -> None:
        topic = await service.topics.get_or_create(NAME)
        assert topic.ledger.entries_total == 1
        assert topic.subscriptions["s"].cursor.backlog == 0

    play(tmp_path, before)
    play(tmp_path, after)


async def _refuse(*_: object) -> None:
    raise LedgerWriteError("the disk is full")


def test_a_step_of_the_clock_is_no_time_without_use(tmp_path: Path) -> None:
    """A message with a receipt was deleted three seconds after its producer had left, as the clock was set then."""
    steady = FakeClock(0)

    async def story(service: Service, clock: FakeClock) -> None:
        await _publish(service, clock, delay_ms=0)
        await service.jobs.delete_inactive()
        for step_ms in (HOUR_MS, -2 * HOUR_MS, HOUR_MS):
            clock.now_ms += step_ms
            await service.jobs.delete_inactive()
            assert NAME in service.topics
        for clocks in (59_000, 1_000):
            assert NAME in service.topics
            clock.now_ms += clocks
            steady.now_ms += clocks
            await service.jobs.delete_inactive()
        assert NAME not in service.topics

    play(tmp_path, story, steady, inactive_topics=InactiveTopicsConfig(is_deleted=True))


def test_a_topic_that_could_not_be_deleted_is_opened_and_deleted_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise LedgerWriteError("no room")

    async def story(service: Service, clock: FakeClock) -> None:
        await _publish(service, clock, delay_ms=0)
        clock.now_ms += 60_000
        with monkeypatch.context() as patched:
            patched.setattr(LedgerStore, "delete_managed_ledger", fail)
            await service.jobs.delete_inactive()
            assert service.topics == {}
            patched.setattr(LedgerStore, "open_managed_ledger", fail)
            await service.jobs.delete_inactive()
        await service.jobs.delete_inactive()
        assert NAME in service.topics
        clock.now_ms += 60_000
        await service.jobs.delete_inactive()
        assert not service.topics.names()

    play(tmp_path, story, inactive_topics=InactiveTopicsConfig(is_deleted=True))


def test_a_question_about_a_topic_that_is_being_deleted_does_not_make_it_anew(tmp_path: Path) -> None:
    async def story(service: Service, clock: FakeClock) -> None:
        deletion = service.topics.delete(await service.topics.get_or_create(NAME))
        assert not service.topics.exists(NAME)
        assert service.topics.names() == []
        assert await service.topics.existing(NAME) is None
        assert deletion.done()
        assert not service.topics.exists(NAME)
        # A client may.
        assert (await service.topics.get_or_create(NAME)) is await service.topics.existing(NAME)

    play(tmp_path, story)


def test_a_topic_that_is_being_deleted_lets_no_producer_in(tmp_path: Path) -> None:
    async def story(service: Service, clock: FakeClock) -> None:
        peer = Peer(service)
        await peer.request(BaseCommand.PRODUCER, "producer", topic="u", producer_id=1, producer_name="p")
        (producer,) = service.topics[TopicName.parse("u")].producers.values()
        topic = await service.topics.get_or_create(NAME)
        deletion = service.topics.delete(topic)
        # The deletion itself has not begun.
        with pytest.raises(TopicClosedError):
            await topic.producers.add(producer)
        await deletion

    play(tmp_path, story)


def test_the_grants_on_a_topic_and_its_policies_are_deleted_with_it(tmp_path: Path) -> None:
    async def story(service: Service) -> None:
        topic = await service.topics.get_or_create(NAME)
        assert service.grants is not None
        await service.grants.grant(NAME, "anna", frozenset({Action.PRODUCE}))
        await service.set_policies(NAME, POLICIES)
        await service.topics.delete(topic)
        assert service.own_policies(NAME) is None
        assert not service.grants.of(NAME.namespace_name).topics

    guarded_service.play(tmp_path, story)


def test_a_topic_that_cannot_be_opened_takes_no_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(service: Service, clock: FakeClock) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(LedgerStore, "open_managed_ledger", _refuse)
            asked = [service.topics.get_or_create(NAME) for _ in range(2)]
            errors = await asyncio.gather(*asked, return_exceptions=True)
            assert [type(one) for one in errors] == [LedgerWriteError] * 2
        assert not service.topics.exists(NAME)
        await service.topics.get_or_create(TopicName.parse("u"))

    play(tmp_path, story, limits=LimitsConfig(topics_per_namespace_max=1))


def test_a_namespace_has_no_sums_without_a_topic(tmp_path: Path) -> None:
    """Prometheus takes those of its next topic for what they are."""

    async def story(service: Service, clock: FakeClock) -> None:
        for name in ("t", "u"):
            await service.topics.get_or_create(TopicName.parse(name))
        await service.topics.delete(service.topics[NAME])
        assert list(service.topics.ended) == ["public/default"]
        await service.topics.delete(service.topics[TopicName.parse("u")])
        assert service.topics.ended == {}
        assert service.topics.counts == {}

    play(tmp_path, story)


def test_many_topics_that_are_asked_for_at_once_are_opened_a_few_at_a_time(tmp_path: Path) -> None:
    names = [TopicName.parse(f"t{number}") for number in range(5 * OPENED_AT_ONCE_MAX)]

    async def story(service: Service, clock: FakeClock) -> None:
        asked = [asyncio.ensure_future(service.topics.get_or_create(name)) for name in names]
        under_way = []
        while len(service.topics) < len(names):
            await asyncio.sleep(0)
            # Their logs are there, and they are not open yet.
            under_way.append(len(service.topics.names()) - len(service.topics))

        assert 1 < max(under_way) <= OPENED_AT_ONCE_MAX
        assert [topic.name for topic in await asyncio.gather(*asked)] == names

    play(tmp_path, story)


def test_a_deleted_topic_leaves_its_place_in_the_namespace(tmp_path: Path) -> None:
    async def before(service: Service, clock: FakeClock) -> None:
        topic = await service.topics.get_or_create(NAME)
        with pytest.raises(NotAllowedError):
            await service.topics.get_or_create(TopicName.parse("u"))
        await service.topics.get_or_create(TopicName.parse("other/place/u"))
        await service.topics.delete(topic)
        await service.topics.get_or_create(TopicName.parse("u"))

    async def after(service: Service, clock: FakeClock) -> None:
        with pytest.raises(NotAllowedError):
            await service.topics.get_or_create(NAME)

    limits = LimitsConfig(topics_per_namespace_max=1)
    play(tmp_path, before, limits=limits)
    play(tmp_path, after, limits=limits)


def test_a_closed_topic_gives_its_memory_back_without_a_search_for_cycles(tmp_path: Path) -> None:
    """A service looks for cycles among new objects only: see `event_loop`."""

    async def story(service: Service, clock: FakeClock) -> None:
        before = _of_a_topic()
        peer = await _subscribe(service)
        await _publish(service, clock)
        await until(_is_one_delayed(service))
        assert (_of_a_topic() - before).total() > 20
        await _leave(peer)
        gc.collect()
        gc.disable()
        try:
            await service.topics.close(service.topics[NAME])
            await until(lambda: not _of_a_topic() - before)
        finally:
            gc.enable()

    play(tmp_path, story)


def _of_a_topic() -> Counter[str]:
    """Count the objects of the modules that a topic with a delayed message is made of."""
    rooms = (
        "postdate.broker.topics.",
        "dispatcher.reader",
        "dispatcher.dispatcher",
        "dispatcher.core.intake",
        "tracker.core.",
    )
    # A class of another library may have anything there.
    modules = (str(type(one).__module__) for one in gc.get_objects())
    return Counter(module for module in modules if module.startswith(rooms))
