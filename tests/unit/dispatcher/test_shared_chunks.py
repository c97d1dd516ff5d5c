"""Shared gives the chunks of a message to one consumer, and no consumer holds up more than the rest of its message."""

import pytest

from dispatcher import DispatcherConfig, SubscriptionType
from dispatcher.slots import sticky_hash
from managed_ledger.entries.headers import CHUNK, LAST_CHUNK, MESSAGE_SHIFT, NO_CHUNK
from managed_ledger.entries.message_metadata import header_flags
from managed_ledger.pb.pulsar_metadata_pb2 import MessageMetadata
from tests.helpers.fakes.shell_world import ShellWorld, settle
from tests.helpers.fakes.virtual_time import run

_ONE_BY_ONE = DispatcherConfig(round_robin_batch_entries_max=1)
_CHUNKS = 3


def _publish_chunks(world: ShellWorld, messages: int, *, chunks: int = _CHUNKS) -> None:
    """Messages of one key, in chunks; fewer chunks than three lack the last."""
    for message in range(messages):
        for chunk in range(chunks):
            is_last = chunk == _CHUNKS - 1
            world.log.append(
                b"%d" % message,
                key_hash=sticky_hash(b"k"),
                flags=CHUNK | (LAST_CHUNK if is_last else 0) | message << MESSAGE_SHIFT,
            )


def test_the_chunks_of_a_message_go_to_one_consumer_and_messages_to_all() -> None:
    async def scenario() -> None:
        world = ShellWorld(SubscriptionType.SHARED, config=_ONE_BY_ONE)
        consumers = [world.join(f"c{number}") for number in range(3)]
        _publish_chunks(world, 9)
        await settle()

        for consumer in consumers:
            assert len(consumer.payloads) >= _CHUNKS
            assert {consumer.payloads.count(one) for one in consumer.payloads} == {_CHUNKS}
        await world.dispatcher.close()

    run(scenario())


def test_a_consumer_that_stalls_holds_up_the_rest_of_its_message_alone() -> None:
    """Also other messages of the key go on, and messages that are no chunks."""

    async def scenario() -> None:
        world = ShellWorld(SubscriptionType.SHARED, config=_ONE_BY_ONE)
        stalled, other = world.join("stalled", permits=_CHUNKS + 1), world.join("other", permits=0)
        _publish_chunks(world, 2)
        await settle()
        world.dispatcher.consumer_flow(other, 1_000)
        for number in range(5):
            world.log.append(
                b"more", key_hash=sticky_hash(b"k"), flags=CHUNK | LAST_CHUNK | (9 + number) << MESSAGE_SHIFT
            )
        world.publish(4)
        await settle()

        assert stalled.payloads == [b"0", b"0", b"0", b"1"]
        assert len(other.payloads) == 5 + 4
        status = world.dispatcher.entry_status(world.log.entries[_CHUNKS + 1].position, sticky_hash(b"k"))
        assert (status.owner, status.is_waiting) == ("stalled", True)
        assert status.reason == "its consumer has no room: it has not asked for more messages"
        world.dispatcher.consumer_flow(stalled, 1_000)
        await settle()
        assert stalled.payloads[3:] == [b"1", b"1", b"1"]
        await world.dispatcher.close()

    run(scenario())


def test_a_message_that_a_consumer_leaves_half_given_goes_to_another_one_whole() -> None:
    async def scenario() -> None:
        world = ShellWorld(SubscriptionType.SHARED, config=_ONE_BY_ONE)
        leaver = world.join("leaver", permits=2)
        _publish_chunks(world, 1)
        await settle()
        others = [world.join(name) for name in ("a", "b")]
        assert not [one for other in others for one in other.payloads]
        world.dispatcher.remove_consumer(leaver)
        await settle()

        assert sorted(len(other.payloads) for other in others) == [0, _CHUNKS]
        await world.dispatcher.close()

    run(scenario())


def test_a_message_without_its_last_chunk_is_free_again_when_it_is_acknowledged() -> None:
    async def scenario() -> None:
        world = ShellWorld(SubscriptionType.SHARED, config=_ONE_BY_ONE)
        first = world.join("first", permits=2)
        _publish_chunks(world, 1, chunks=2)
        await settle()
        world.acknowledge_all(first)
        second = world.join("second")
        _publish_chunks(world, 1, chunks=1)
        await settle()

        assert second.payloads == [b"0"]
        await world.dispatcher.close()

    run(scenario())


@pytest.mark.parametrize("uuid", ["p-7", ""])
def test_the_header_of_a_chunk_tells_its_message_and_whether_it_is_the_last(uuid: str) -> None:
    def flags(chunk_id: int, sequence_id: int = 7) -> int:
        metadata = MessageMetadata(producer_name="p", sequence_id=sequence_id, publish_time=1, num_chunks_from_msg=3)
        metadata.chunk_id = chunk_id
        metadata.uuid = uuid and f"p-{sequence_id}"
        return header_flags(metadata)

    assert {flags(number) >> MESSAGE_SHIFT for number in range(3)} == {flags(0) >> MESSAGE_SHIFT}
    assert flags(0) >> MESSAGE_SHIFT != flags(0, sequence_id=8) >> MESSAGE_SHIFT
    assert [bool(flags(number) & LAST_CHUNK) for number in range(3)] == [False, False, True]
    assert flags(0) & CHUNK
    assert not flags(0) & NO_CHUNK
    assert header_flags(MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)) == NO_CHUNK
