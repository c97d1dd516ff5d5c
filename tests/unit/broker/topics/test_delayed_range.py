"""Delays are switched off by the file or by policies while messages are delayed: the whole service agrees."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.cursors.cursor import Cursor
from managed_ledger.errors import LedgerWriteError
from managed_ledger.positions.position import AFTER_EVERYTHING, BEFORE_EVERYTHING, Position
from postdate.broker.admin.topic_stats import topic_stats
from postdate.broker.protocol.pb.pulsar_api_pb2 import BaseCommand
from postdate.broker.scheduled.delayed_counts import delayed_counts
from postdate.broker.service.service import Service
from postdate.broker.topics.delayed_range import delays_through, settle_notes
from postdate.broker.topics.policies import DelayedDeliveryPolicies
from postdate.testing import FakeClock
from tests.helpers.fakes.service_fakes import open_service
from tests.helpers.service_lives import HOUR_MS, NAME, START_MS, subscribe
from tests.helpers.until import until
from tracker.config import TrackerConfig

MESSAGES = 10
SNAPSHOTS = 2
"""They have two ledgers of four. Two of the third are in the mutable bucket, which is not sealed at the end."""

OFF = DelayedDeliveryPolicies(is_active=False, tick_time_ms=1_000, delay_ms_max=0)


class Lives:
    """A data folder, and the services that run on it one after the other."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.clock = FakeClock(START_MS)

    def play(self, story: Callable[[Service], Awaitable[None]], *, is_enabled: bool, is_shared: bool) -> None:
        tracker = TrackerConfig(
            is_enabled=is_enabled,
            is_index_shared=is_shared,
            index_count_per_bucket_min=4,
            index_count_per_bucket_max=4,
            index_count_at_close_min=-1,
        )

        async def run() -> None:
            service = await open_service(
                self._folder, self.clock, tracker=tracker, managed_ledger=ManagedLedgerConfig(entries_per_ledger_max=4)
            )
            try:
                await story(service)
            finally:
                await service.close()

        asyncio.run(run())


@pytest.fixture(params=[False, True], ids=["own index", "shared index"])
def is_shared(request: pytest.FixtureRequest) -> bool:
    assert isinstance(request.param, bool)
    return request.param


async def fill(service: Service) -> None:
    """Have ten messages delayed by an hour, eight of them in snapshots; no consumer stays."""
    peer = await subscribe(service)
    topic = await service.topics.get_or_create(NAME)
    for _ in range(MESSAGES):
        await topic.ledger.append(b"x", publish_time_ms=START_MS, deliver_at_ms=START_MS + HOUR_MS)
    cursors = topic.ledger.cursors.values()
    await until(lambda: sum("delayed.bucket" in key for cursor in cursors for key in cursor.properties) == SNAPSHOTS)
    await peer.request(BaseCommand.CLOSE_CONSUMER, "close_consumer", consumer_id=1)


async def delayed_by_stats(service: Service) -> int:
    topic = await service.topics.get_or_create(NAME)
    counts = await delayed_counts(topic, service.catalog, service.now_ms)
    return int((await topic_stats(topic, counts))["subscriptions"]["s"]["msgDelayed"])


async def delayed_by_dispatcher(service: Service) -> int:
    """Let a consumer come, and count what its dispatcher delays."""
    peer = await subscribe(service)
    peer.send(BaseCommand(type=BaseCommand.FLOW, flow={"consumer_id": 1, "messagePermits": 100}))
    dispatcher = service.topics[NAME].subscriptions["s"].dispatcher
    assert dispatcher is not None
    await until(lambda: dispatcher.has_read_all)
    await until(lambda: dispatcher.stats().msg_delayed == MESSAGES)
    return dispatcher.stats().msg_delayed


async def assert_next_is_not_delayed(service: Service, *, subscriptions: int = 1) -> None:
    topic = service.topics[NAME]
    position = await topic.ledger.append(b"x", publish_time_ms=START_MS, deliver_at_ms=START_MS + HOUR_MS)
    assert len(topic.subscriptions) == subscriptions
    for subscription in topic.subscriptions.values():
        assert position > delays_through(subscription.cursor, topic.delayed_delivery)


def test_what_is_delayed_keeps_its_times_when_the_file_switches_delays_off(tmp_path: Path, is_shared: bool) -> None:
    async def after(service: Service) -> None:
        assert await delayed_by_stats(service) == MESSAGES
        assert await delayed_by_dispatcher(service) == MESSAGES
        assert await delayed_by_stats(service) == MESSAGES
        await assert_next_is_not_delayed(service)

    lives = Lives(tmp_path)
    lives.play(fill, is_enabled=True, is_shared=is_shared)
    for _ in range(2):
        lives.play(after, is_enabled=False, is_shared=is_shared)


def test_policies_switch_delays_off_before_a_consumer_comes(tmp_path: Path, is_shared: bool) -> None:
    async def after(service: Service) -> None:
        topic = await service.topics.get_or_create(NAME)
        await service.set_policies(NAME, replace(topic.delayed_delivery, is_active=False))

        assert await delayed_by_stats(service) == MESSAGES
        assert await delayed_by_dispatcher(service) == MESSAGES

    lives = Lives(tmp_path)
    lives.play(fill, is_enabled=True, is_shared=is_shared)
    lives.play(after, is_enabled=True, is_shared=is_shared)


def test_policies_switch_delays_off_while_the_topic_is_closed(tmp_path: Path, is_shared: bool) -> None:
    async def after(service: Service) -> None:
        await service.set_policies(NAME, OFF)
        assert NAME not in service.topics

        assert await delayed_by_dispatcher(service) == MESSAGES
        assert await delayed_by_stats(service) == MESSAGES
        await assert_next_is_not_delayed(service)

    lives = Lives(tmp_path)
    lives.play(fill, is_enabled=True, is_shared=is_shared)
    lives.play(after, is_enabled=True, is_shared=is_shared)


def test_a_subscription_that_is_made_without_delays_has_none(tmp_path: Path) -> None:
    async def story(service: Service) -> None:
        await service.set_policies(NAME, OFF)
        topic = await service.topics.get_or_create(NAME)
        await assert_next_is_not_delayed(service, subscriptions=0)
        await subscribe(service)
        assert delays_through(topic.subscriptions["s"].cursor, topic.delayed_delivery) == BEFORE_EVERYTHING

    Lives(tmp_path).play(story, is_enabled=True, is_shared=False)


def test_the_policies_of_a_namespace_do_not_touch_a_topic_with_its_own(tmp_path: Path) -> None:
    async def story(service: Service) -> None:
        await fill(service)
        topic = service.topics[NAME]
        await service.set_policies(NAME, OFF)
        await assert_next_is_not_delayed(service)
        for policies in (replace(OFF, is_active=True), OFF, None):
            await service.set_policies(NAME.namespace_name, policies)
            assert delays_through(topic.subscriptions["s"].cursor, topic.delayed_delivery) < topic.ledger.last_position

    Lives(tmp_path).play(story, is_enabled=True, is_shared=False)


def test_a_note_ends_with_the_time_without_delays(tmp_path: Path) -> None:
    """Messages that were published in that time keep their times when they are switched off once more."""

    async def story(service: Service) -> None:
        await fill(service)
        topic = service.topics[NAME]
        for policies in (OFF, replace(OFF, is_active=True)):
            await service.set_policies(NAME, policies)
            await topic.ledger.append(b"x", publish_time_ms=START_MS, deliver_at_ms=START_MS + HOUR_MS)
        assert not any("delays-through" in name for name in topic.subscriptions["s"].cursor.properties)
        await service.set_policies(NAME, OFF)
        through = delays_through(topic.subscriptions["s"].cursor, topic.delayed_delivery)
        assert through == topic.ledger.last_position

    Lives(tmp_path).play(story, is_enabled=True, is_shared=False)


def test_nothing_published_while_delays_are_off_is_delayed_later(tmp_path: Path) -> None:
    """Also in the ledger that the snapshots end in."""
    noted: list[Position] = []

    async def off(service: Service) -> None:
        topic = await service.topics.get_or_create(NAME)
        noted.append(delays_through(topic.subscriptions["s"].cursor, topic.delayed_delivery))
        await topic.ledger.append(b"x", publish_time_ms=START_MS, deliver_at_ms=START_MS + HOUR_MS)

    async def on(service: Service) -> None:
        topic = await service.topics.get_or_create(NAME)
        assert delays_through(topic.subscriptions["s"].cursor, topic.delayed_delivery) == AFTER_EVERYTHING

    lives = Lives(tmp_path)
    lives.play(fill, is_enabled=True, is_shared=False)
    for story, is_enabled in ((off, False), (off, False), (on, True)):
        lives.play(story, is_enabled=is_enabled, is_shared=False)

    assert noted[0] == noted[1]


def test_a_note_that_cannot_be_stored_is_told_and_the_topic_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise LedgerWriteError("no room")

    async def after(service: Service) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(Cursor, "update_properties", fail)
            topic = await service.topics.get_or_create(NAME)
        assert "not noted how far delays are heeded" in caplog.text
        assert "no room" in caplog.text
        assert delays_through(topic.subscriptions["s"].cursor, topic.delayed_delivery) == AFTER_EVERYTHING
        await settle_notes(topic.ledger, topic.delayed_delivery)
        assert await delayed_by_stats(service) == MESSAGES

    lives = Lives(tmp_path)
    lives.play(fill, is_enabled=True, is_shared=False)
    lives.play(after, is_enabled=False, is_shared=False)
