"""Delays are switched off by the file or by policies while snapshots hold messages: the whole service agrees."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from broker.admin.topic_stats import topic_stats
from broker.protocol.pb.pulsar_api_pb2 import BaseCommand
from broker.scheduled.delayed_counts import delayed_counts
from broker.service.service import Service
from broker.topics.delayed_range import delays_through, note_delays_of_snapshots
from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.cursors.cursor import Cursor
from managed_ledger.errors import LedgerWriteError
from managed_ledger.position import AFTER_EVERYTHING, Position
from tests.helpers.fakes.service_fakes import open_service, until
from tests.helpers.service_lives import HOUR_MS, NAME, START_MS, subscribe
from tracker.config import TrackerConfig
from tracker.testing import FakeClock

MESSAGES = 10
IN_SNAPSHOTS = 8
"""Two ledgers of four; of the third, two are in the mutable bucket, which is too small to be sealed at the end."""


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
    topic = await service.topic(NAME)
    for _ in range(MESSAGES):
        await topic.ledger.append(b"x", publish_time_ms=START_MS, deliver_at_ms=START_MS + HOUR_MS)
    cursors = topic.ledger.cursors.values()
    await until(lambda: sum("delayed.bucket" in key for cursor in cursors for key in cursor.properties) == 2)
    await peer.request(BaseCommand.CLOSE_CONSUMER, "close_consumer", consumer_id=1)


async def delayed_by_stats(service: Service) -> int:
    topic = await service.topic(NAME)
    counts = await delayed_counts(topic, service.catalog, service.now_ms)
    return int((await topic_stats(topic, counts))["subscriptions"]["s"]["msgDelayed"])


async def delayed_by_dispatcher(service: Service) -> int:
    """Let a consumer come, and count what its dispatcher delays."""
    peer = await subscribe(service)
    peer.send(BaseCommand(type=BaseCommand.FLOW, flow={"consumer_id": 1, "messagePermits": 100}))
    dispatcher = service.topics[NAME].subscriptions["s"].dispatcher
    assert dispatcher is not None
    await until(lambda: dispatcher.has_read_all)
    await until(lambda: dispatcher.stats().msg_delayed == IN_SNAPSHOTS)
    return dispatcher.stats().msg_delayed


def test_what_snapshots_hold_keeps_its_times_when_the_file_switches_delays_off(tmp_path: Path, is_shared: bool) -> None:
    async def after(service: Service) -> None:
        assert await delayed_by_stats(service) == IN_SNAPSHOTS
        assert await delayed_by_dispatcher(service) == IN_SNAPSHOTS
        assert await delayed_by_stats(service) == IN_SNAPSHOTS
        topic = service.topics[NAME]
        position = await topic.ledger.append(b"x", publish_time_ms=START_MS, deliver_at_ms=START_MS + HOUR_MS)
        assert position > delays_through(topic.subscriptions["s"].cursor, topic.delayed_delivery)

    lives = Lives(tmp_path)
    lives.play(fill, is_enabled=True, is_shared=is_shared)
    for _ in range(2):
        lives.play(after, is_enabled=False, is_shared=is_shared)


def test_policies_switch_delays_off_before_a_consumer_comes(tmp_path: Path, is_shared: bool) -> None:
    async def after(service: Service) -> None:
        topic = await service.topic(NAME)
        await service.set_policies(NAME, replace(topic.delayed_delivery, is_active=False))

        assert await delayed_by_stats(service) == IN_SNAPSHOTS
        assert await delayed_by_dispatcher(service) == IN_SNAPSHOTS

    lives = Lives(tmp_path)
    lives.play(fill, is_enabled=True, is_shared=is_shared)
    lives.play(after, is_enabled=True, is_shared=is_shared)


def test_nothing_published_while_delays_are_off_is_delayed_later(tmp_path: Path) -> None:
    """Also in the ledger that the snapshots end in."""
    noted: list[Position] = []

    async def off(service: Service) -> None:
        topic = await service.topic(NAME)
        noted.append(delays_through(topic.subscriptions["s"].cursor, topic.delayed_delivery))
        await topic.ledger.append(b"x", publish_time_ms=START_MS, deliver_at_ms=START_MS + HOUR_MS)

    async def on(service: Service) -> None:
        topic = await service.topic(NAME)
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
            topic = await service.topic(NAME)
        assert "not noted how far delays are heeded" in caplog.text
        assert "no room" in caplog.text
        await note_delays_of_snapshots(topic.ledger)
        assert await delayed_by_stats(service) == IN_SNAPSHOTS

    lives = Lives(tmp_path)
    lives.play(fill, is_enabled=True, is_shared=False)
    lives.play(after, is_enabled=False, is_shared=False)
