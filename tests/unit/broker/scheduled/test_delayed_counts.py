"""How many messages wait for their time, where no consumer has come since the start."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from managed_ledger.managed_ledger import ManagedLedger
from managed_ledger.positions.position import Position
from managed_ledger.reading.selection import HeadersRead
from postdate.broker.admin.topic_stats import topic_stats
from postdate.broker.protocol.pb.pulsar_api_pb2 import BaseCommand
from postdate.broker.scheduled.catalog import ScheduleCatalog
from postdate.broker.scheduled.delayed_counts import COUNTING_SHARE, count_delayed, delayed_counts
from postdate.broker.service.service import Service
from postdate.broker.service.topic_lives import REST_AFTER_MS
from postdate.broker.topics.policies import DelayedDeliveryPolicies
from postdate.testing import FakeClock
from tests.helpers.service_lives import EXCLUSIVE, HOUR_MS, NAME, play, subscribe
from tests.helpers.until import until


async def _six_delayed_of_ten(service: Service, clock: FakeClock) -> None:
    """Ten messages: four are due at once, and six wait for one to six hours; no consumer stays."""
    peer = await subscribe(service)
    topic = await service.topics.get_or_create(NAME)
    for hours in (0, 1, 0, 2, 3, 0, 4, 5, 0, 6):
        await topic.ledger.append(b"x", publish_time_ms=clock(), deliver_at_ms=clock() + hours * HOUR_MS)
    await peer.request(BaseCommand.CLOSE_CONSUMER, "close_consumer", consumer_id=1)


async def _shown(service: Service) -> tuple[int, int, int]:
    """Return the backlog, the delayed messages of it, and the others, as `stats` shows them."""
    topic = await service.topics.get_or_create(NAME)
    described = await topic_stats(topic, await delayed_counts(topic, service.catalog, service.now_ms))
    stats = described["subscriptions"]["s"]
    return stats["msgBacklog"], stats["msgDelayed"], stats["msgBacklogNoDelayed"]


async def _metric(service: Service) -> list[str]:
    await service.jobs.count_delayed()
    text = b"".join([chunk async for chunk in service.metrics()]).decode()
    return [line.rpartition(" ")[2] for line in text.splitlines() if line.startswith("pulsar_subscription_delayed{")]


def test_after_a_restart_the_delayed_messages_are_counted_before_a_consumer_comes(tmp_path: Path) -> None:
    async def after(service: Service, clock: FakeClock) -> None:
        assert await _shown(service) == (10, 6, 4)
        assert await _metric(service) == ["6.0"]
        assert service.topics[NAME].subscriptions["s"].dispatcher is None
        # They come due without a consumer.
        clock.now_ms += 2 * HOUR_MS
        assert await _shown(service) == (10, 4, 6)
        assert await _metric(service) == ["4.0"]

        await subscribe(service)

        dispatcher = service.topics[NAME].subscriptions["s"].dispatcher
        assert dispatcher is not None
        await until(lambda: dispatcher.stats().msg_delayed == 4)
        assert await _shown(service) == (10, 4, 6)

    play(tmp_path, _six_delayed_of_ten, after)


def test_before_a_dispatcher_has_read_the_log_its_delayed_messages_are_counted_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_let_go = asyncio.Event()
    read_headers = ManagedLedger.read_headers

    async def read_later(log: ManagedLedger, first: Position, **values: Any) -> HeadersRead:
        await is_let_go.wait()
        return await read_headers(log, first, **values)

    async def after(service: Service, clock: FakeClock) -> None:
        monkeypatch.setattr(ManagedLedger, "read_headers", read_later)
        await subscribe(service)
        dispatcher = service.topics[NAME].subscriptions["s"].dispatcher
        assert dispatcher is not None

        assert await _metric(service) == ["6.0"]
        assert dispatcher.stats().msg_delayed == 0

        is_let_go.set()
        await until(lambda: dispatcher.has_read_all)
        assert dispatcher.stats().msg_delayed == 6

    play(tmp_path, _six_delayed_of_ten, after)


def test_an_acknowledged_message_is_not_counted(tmp_path: Path) -> None:
    async def after(service: Service, clock: FakeClock) -> None:
        subscription = (await service.topics.get_or_create(NAME)).subscriptions["s"]
        delayed = [(one.ledger_id, 1) for one in service.topics[NAME].ledger.ledgers()][:1]
        subscription.cursor.acknowledge(*zip(*delayed, strict=True))

        assert await _shown(service) == (9, 5, 4)

    play(tmp_path, _six_delayed_of_ten, after)


def test_where_delays_are_switched_off_only_those_that_keep_their_times_count(tmp_path: Path) -> None:
    async def after(service: Service, clock: FakeClock) -> None:
        off = DelayedDeliveryPolicies(is_active=False, tick_time_ms=1_000, delay_ms_max=0)
        await service.set_policies(NAME, off)
        assert await _shown(service) == (10, 6, 4)

        topic = service.topics[NAME]
        await topic.ledger.append(b"x", publish_time_ms=clock.now_ms, deliver_at_ms=clock.now_ms + HOUR_MS)
        assert await _shown(service) == (11, 6, 5)

    play(tmp_path, _six_delayed_of_ten, after)


def test_a_subscription_that_does_not_delay_has_none(tmp_path: Path) -> None:
    async def after(service: Service, clock: FakeClock) -> None:
        peer = await subscribe(service, EXCLUSIVE)
        await peer.request(BaseCommand.CLOSE_CONSUMER, "close_consumer", consumer_id=1)

        assert await _shown(service) == (10, 0, 10)

    play(tmp_path, _six_delayed_of_ten, after)


def test_a_resting_topic_has_its_count_until_all_are_due(tmp_path: Path) -> None:
    """Before and after a start; a closed topic knows only when the first and the last one are due."""

    async def resting(service: Service, clock: FakeClock) -> None:
        assert NAME not in service.topics
        assert service.catalog.bytes_used == 0
        assert await _metric(service) == ["6.0"]

    async def before(service: Service, clock: FakeClock) -> None:
        await _six_delayed_of_ten(service, clock)
        clock.now_ms += REST_AFTER_MS
        await service.jobs.close_unused()
        await resting(service, clock)

    async def after(service: Service, clock: FakeClock) -> None:
        await resting(service, clock)
        clock.now_ms += 6 * HOUR_MS
        assert await _metric(service) == ["0.0"]

    play(tmp_path, before, after)


def test_a_long_log_is_counted_now_and_then_and_not_kept(tmp_path: Path) -> None:
    async def after(service: Service, clock: FakeClock) -> None:
        topic = await service.topics.get_or_create(NAME)
        subscription, catalog = topic.subscriptions["s"], ScheduleCatalog()

        async def counted(*times_s: float) -> int:
            times = iter(times_s)
            await count_delayed(topic, catalog, clock, kept_entries_max=9, monotonic_s=lambda: next(times))
            return subscription.delayed_in_log.count

        # It takes from 100 to 101.
        assert await counted(100, 101) == 6
        assert catalog.bytes_used == 0
        clock.now_ms += HOUR_MS
        not_yet_s = 101 + 1 / COUNTING_SHARE
        assert await counted(not_yet_s - 0.1) == 6
        assert await counted(not_yet_s, not_yet_s) == 5

    play(tmp_path, _six_delayed_of_ten, after)
