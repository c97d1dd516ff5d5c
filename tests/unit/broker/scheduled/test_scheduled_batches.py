"""Batches with a delivery time, which no client of Pulsar sends, are whole; and what else an entry may be."""

import asyncio
from pathlib import Path

import pytest

from managed_ledger.entries.messages import message_of
from managed_ledger.pb.pulsar_metadata_pb2 import MessageMetadata
from postdate.broker.admin.web import WebServer
from postdate.broker.scheduled.operations import early_ms_of
from postdate.broker.topics.policies import DelayedDeliveryPolicies
from tests.helpers.fakes.service_fakes import Peer, open_service
from tests.helpers.scheduled_topic import NOW_MS, ScheduledApi, play, subscribed
from tests.helpers.send_frames import batch_frame

DUE_MS = NOW_MS + 70_000
NEW_MS = NOW_MS + 90_000


def test_a_batch_is_listed_counted_moved_and_cancelled_as_one_message(tmp_path: Path) -> None:
    async def story(server: WebServer, peer: Peer) -> None:
        api = ScheduledApi(server, peer)
        *_, batch = await api.publish(batch_frame(["c", "d", "e"], deliver_at_ms=DUE_MS), 3)

        listed = (await api.listed())[-1]
        counted = await api.get("/scheduled/histogram")
        explained = await api.get(f"/explain?messageId={batch}")
        _, moved = await api.post("reschedule", messageIds=[batch], deliverAtMs=NEW_MS)
        _, cancelled = await api.post("cancel", **{"from": NEW_MS})

        assert (listed["key"], listed["properties"], counted["total"]) == ("k", {}, 3)
        assert [one["messageId"] for one in explained["messages"]] == [batch]
        assert (moved["matched"], moved["rescheduled"]) == (1, 1)
        assert (cancelled["matched"], cancelled["cancelled"]) == (1, 1)
        assert len(await api.ids()) == 2

    play(tmp_path, story)


@pytest.mark.parametrize("wrong", ["{}:0", "{}:1"])
def test_an_id_names_an_entry_and_no_message_of_it(tmp_path: Path, wrong: str) -> None:
    async def story(server: WebServer, peer: Peer) -> None:
        api = ScheduledApi(server, peer)
        a, _ = await api.ids()

        status, answer = await api.post("cancel", messageIds=[wrong.format(a)])

        assert (status, answer["field"], answer["advice"]) == (400, "messageIds", 'Write "ledger:entry"')
        assert len(await api.ids()) == 2

    play(tmp_path, story)


def test_messages_may_be_early_by_the_tick_of_their_topic_and_strict_ones_never(tmp_path: Path) -> None:
    """Messages that may have been delivered are not moved; a topic can have a longer tick than the broker."""

    async def story() -> None:
        service = await open_service(tmp_path)
        _, topic = await subscribed(service)
        policies = DelayedDeliveryPolicies(is_active=True, tick_time_ms=7_000, delay_ms_max=0)
        await service.set_policies(topic.name, policies)

        assert early_ms_of(topic, is_strict=False) == 7_000
        assert early_ms_of(topic, is_strict=True) == 0
        await service.close()

    asyncio.run(story())


@pytest.mark.parametrize("compression", ["ZSTD", "ZLIB"])
def test_an_encrypted_message_stays_so_and_tells_its_compression(compression: str) -> None:
    """A producer compresses first, so nothing can be undone before the key is known."""
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, compression=compression)
    metadata.encryption_keys.add(key="k", value=b"sealed")
    data = metadata.SerializeToString()
    entry = b"\x0e\x01" + bytes(4) + len(data).to_bytes(4, "big") + data + b"encrypted"

    message = message_of(entry)

    assert (message.payload, message.payload_compression) == (b"encrypted", compression)
