"""A shared index after a restart: a subscription that was ahead of the others gets its messages in order of time."""

import asyncio
from pathlib import Path
from typing import Any

from dispatcher import DispatcherConfig
from dispatcher.core.multiple_consumers import MultipleConsumersCore
from managed_ledger.config import ManagedLedgerConfig
from postdate.broker.protocol.pb.pulsar_api_pb2 import BaseCommand
from postdate.broker.service.service import Service
from postdate.testing import FakeClock
from tests.helpers.fakes.service_fakes import Peer, open_service
from tests.helpers.send_frames import send_frame
from tests.helpers.until import until
from tracker.config import TrackerConfig
from tracker.stats import BucketOperation

_SEALED, _AHEAD, _UNSEALED = 60, 50, 4
_CONFIG: dict[str, Any] = {
    # Rows are polled one by one, so that a view takes many of the acknowledged ones before it gives up for a turn.
    "dispatcher": DispatcherConfig(read_batch_entries_max=1),
    "managed_ledger": ManagedLedgerConfig(entries_per_ledger_max=5),
    "tracker": TrackerConfig(is_index_shared=True, index_count_per_bucket_min=30, index_count_per_bucket_max=30),
}


def _received(peer: Peer) -> list[tuple[int, int]]:
    ids = [one.message.message_id for one in peer.answers() if one.type == BaseCommand.MESSAGE]
    return [(one.ledgerId, one.entryId) for one in ids]


async def _subscriber(service: Service, name: str, permits: int) -> Peer:
    peer = Peer(service)
    await peer.request(
        BaseCommand.SUBSCRIBE, "subscribe", topic="t", subscription=name, subType=1, consumer_id=1, initialPosition=1
    )
    peer.send(BaseCommand(type=BaseCommand.FLOW, flow={"consumer_id": 1, "messagePermits": permits}))
    return peer


async def _producer(service: Service) -> Peer:
    peer = Peer(service)
    await peer.request(BaseCommand.PRODUCER, "producer", topic="t", producer_id=1, producer_name="p")
    return peer


def _delayed(service: Service, name: str) -> int:
    (topic,) = service.topics.values()
    stats = topic.subscriptions[name].stats()
    return 0 if stats is None else stats.msg_delayed


def _stored_buckets(service: Service) -> int:
    (topic,) = service.topics.values()
    index = topic.metrics().shared_index
    return 0 if index is None else index.operations[BucketOperation.CREATE].succeed


async def _first_life(service: Service, clock: FakeClock) -> None:
    """One subscription acknowledges most of the index, and another one nothing, so that all of it stays."""
    await _subscriber(service, "slow", 0)
    fast = await _subscriber(service, "fast", _AHEAD)
    producer = await _producer(service)
    for number in range(_SEALED):
        producer.send_bytes(send_frame(number, deliver_at_ms=clock() + 1_000 + number))
    # One more seals the second bucket.
    producer.send_bytes(send_frame(_SEALED, deliver_at_ms=clock() + 3_600_000))
    await until(lambda: _delayed(service, "fast") == _SEALED + 1)
    await until(lambda: _stored_buckets(service) == 2)
    clock.now_ms += 2_000
    fast.send(BaseCommand(type=BaseCommand.FLOW, flow={"consumer_id": 1, "messagePermits": 1}))
    await until(lambda: len(_received(fast)) == _AHEAD + 1)
    ack = BaseCommand(type=BaseCommand.ACK, ack={"consumer_id": 1, "ack_type": 0})
    for ledger_id, entry_id in _received(fast)[:_AHEAD]:
        ack.ack.message_id.add(ledgerId=ledger_id, entryId=entry_id)
    fast.send(ack)
    for number in range(_UNSEALED):
        producer.send_bytes(send_frame(_SEALED + 1 + number, deliver_at_ms=clock() + 1_000 + number))
    await until(
        lambda: sum(one.type == BaseCommand.SEND_RECEIPT for one in producer.answers()) == _SEALED + 1 + _UNSEALED
    )


def test_a_subscription_that_was_ahead_gets_its_messages_in_order_of_time(tmp_path: Path) -> None:
    async def story() -> None:
        clock = FakeClock(1_800_000_000_000)
        service = await open_service(tmp_path, clock, **_CONFIG)
        await _first_life(service, clock)
        await service.close()
        clock.now_ms += 60_000
        service = await open_service(tmp_path, clock, **_CONFIG)
        await _subscriber(service, "slow", 0)
        fast = await _subscriber(service, "fast", 0)
        # Without permits, entries that are due when they are read are held until their turn.
        (topic,) = service.topics.values()
        dispatcher = topic.subscriptions["fast"].dispatcher
        assert dispatcher is not None
        core = dispatcher.core
        assert isinstance(core, MultipleConsumersCore)
        await until(lambda: len(core.intake.held_due) == _UNSEALED)
        # An immediate one is read in the step in which the view gives nothing for the first time.
        producer = await _producer(service)
        producer.send_bytes(send_frame(0))
        await until(lambda: any(one.type == BaseCommand.SEND_RECEIPT for one in producer.answers()))
        fast.send(BaseCommand(type=BaseCommand.FLOW, flow={"consumer_id": 1, "messagePermits": 1_000}))
        await until(lambda: len(_received(fast)) > _SEALED + _UNSEALED - _AHEAD)

        delayed = [position for position in _received(fast) if position != max(_received(fast))]
        assert len(delayed) == _SEALED + _UNSEALED - _AHEAD
        assert delayed == sorted(delayed)
        await service.close()

    asyncio.run(story())
