"""A connection handles the commands it receives: receipts, back-pressure, access modes, faults that stay its own."""

import asyncio
import struct
from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path

import pytest

from dispatcher import DispatcherConfig
from postdate.broker.admin.topic_stats import subscription_stats
from postdate.broker.clients.connection import REQUESTS_MAX, UNREAD_BYTES_MAX, Connection
from postdate.broker.clients.requests import HANDLERS
from postdate.broker.protocol.commands import frame
from postdate.broker.protocol.pb.pulsar_api_pb2 import (
    BaseCommand,
    CommandProducerSuccess,
    CommandSubscribe,
    KeySharedMeta,
    KeySharedMode,
    ProducerAccessMode,
    ServerError,
)
from postdate.broker.service.service import Service
from postdate.broker.slices import SLICE_S
from postdate.broker.topics.limits import LimitsConfig
from postdate.broker.topics.topic_name import TopicName
from tests.helpers.fakes.service_fakes import Peer, play, subscribe
from tests.helpers.send_frames import send_frame
from tests.helpers.until import until
from tracker.config import TrackerConfig

Story = Callable[[Service], Awaitable[None]]


async def producer(peer: Peer, mode: int = ProducerAccessMode.Shared, name: str = "") -> BaseCommand:
    """Ask for producer 1 on topic t."""
    return await peer.request(
        BaseCommand.PRODUCER, "producer", topic="t", producer_id=1, producer_name=name, producer_access_mode=mode
    )


def test_receipts_come_in_the_order_of_sends_and_name_positions(tmp_path: Path) -> None:
    async def story(service: Service) -> None:
        peer = Peer(service)
        await producer(peer)

        peer.send_bytes(b"".join(send_frame(i) for i in range(100)))
        receipts = await until(
            lambda: [one.send_receipt for one in peer.answers() if one.type == BaseCommand.SEND_RECEIPT]
        )

        assert [receipt.sequence_id for receipt in receipts] == list(range(100))
        assert [receipt.message_id.entryId for receipt in receipts] == list(range(100))

    play(tmp_path, story)


def test_a_corrupt_send_is_refused_and_the_next_one_is_kept(tmp_path: Path) -> None:
    async def story(service: Service) -> None:
        peer = Peer(service)
        await producer(peer)

        peer.send_bytes(send_frame(0, is_corrupt=True) + send_frame(1))
        await until(lambda: any(one.type == BaseCommand.SEND_RECEIPT for one in peer.answers()))

        refused = [one.send_error for one in peer.answers() if one.type == BaseCommand.SEND_ERROR]
        assert [error.sequence_id for error in refused] == [0]
        assert not peer.transport.closed

    play(tmp_path, story)


def pings(count: int) -> bytes:
    """Frames that are answered at once, one by one."""
    return frame(BaseCommand(type=BaseCommand.PING, ping={})) * count


def pongs(peer: Peer) -> int:
    """How many of them were answered."""
    return sum(one.type == BaseCommand.PONG for one in peer.answers())


def test_sends_that_wait_for_a_slice_keep_their_order_also_before_what_comes_later(tmp_path: Path) -> None:
    async def story(service: Service) -> None:
        peer = Peer(service, clock_s=count(0, SLICE_S).__next__)
        await producer(peer)

        peer.send_bytes(b"".join(send_frame(i) for i in range(5)))
        peer.send_bytes(b"".join(send_frame(i) for i in range(5, 8)))
        await until(lambda: sum(one.type == BaseCommand.SEND_RECEIPT for one in peer.answers()) == 8)

        receipts = [one.send_receipt for one in peer.answers() if one.type == BaseCommand.SEND_RECEIPT]
        assert [(one.sequence_id, one.message_id.entryId) for one in receipts] == [(i, i) for i in range(8)]

    play(tmp_path, story)


def test_acknowledgements_that_were_received_before_a_connection_was_lost_count(tmp_path: Path) -> None:
    async def story(service: Service) -> None:
        peer = Peer(service, clock_s=count(0, SLICE_S).__next__)
        await producer(peer)
        await peer.request(BaseCommand.SUBSCRIBE, "subscribe", topic="t", subscription="s", consumer_id=1, subType=1)
        peer.send_bytes(b"".join(send_frame(i) for i in range(5)))
        cursor = service.topics[TopicName.parse("t")].subscriptions["s"].cursor
        await until(lambda: cursor.backlog == 5)
        ledger_id = cursor.next_unacknowledged_position.ledger_id

        acks = [BaseCommand(type=BaseCommand.ACK, ack={"consumer_id": 1, "ack_type": 0}) for _ in range(5)]
        for entry_id, command in enumerate(acks):
            command.ack.message_id.add(ledgerId=ledger_id, entryId=entry_id)
        peer.send_bytes(b"".join(map(frame, acks)))
        left = cursor.backlog
        peer.connection.connection_lost(None)
        await until(lambda: not service.topics[TopicName.parse("t")].subscriptions["s"].consumers)

        assert left > 0
        assert cursor.backlog == 0

    play(tmp_path, story)


@pytest.mark.parametrize("fault", [send_frame(0), struct.pack(">II", 7, 3) + b"\xff\xff\xff"])
def test_a_fault_in_a_later_slice_ends_the_connection_and_what_is_behind_it_is_not_handled(
    tmp_path: Path, fault: bytes
) -> None:
    """A message without a producer; and bytes that are no command: frames are parsed in their slice, no earlier."""

    async def story(service: Service) -> None:
        peer = Peer(service, clock_s=count(0, SLICE_S).__next__)

        peer.send_bytes(pings(3) + fault + pings(3))
        was_closed = peer.transport.closed
        await until(lambda: peer.transport.closed)

        assert not was_closed
        assert pongs(peer) == 3

    play(tmp_path, story)


def test_a_fault_of_one_connection_leaves_the_others_alone(tmp_path: Path) -> None:
    async def story(service: Service) -> None:
        bad, good = Peer(service), Peer(service)

        bad.send_bytes(b"GET / HTTP/1.1\r\n\r\n")
        answer = await producer(good)

        assert bad.transport.closed
        assert answer.type == BaseCommand.PRODUCER_SUCCESS

    play(tmp_path, story)


def test_a_command_before_connect_ends_the_connection(tmp_path: Path) -> None:
    async def story(service: Service) -> None:
        peer = Peer(service, has_to_connect=False)

        peer.send(BaseCommand(type=BaseCommand.PING, ping={}))

        assert peer.transport.closed

    play(tmp_path, story)


def test_one_connection_too_many_hears_so_when_it_connects(tmp_path: Path) -> None:
    async def story(service: Service) -> None:
        first, second = Peer(service), Peer(service)

        (refused,) = second.answers()
        assert second.transport.closed
        assert not first.transport.closed
        assert (refused.type, refused.error.request_id) == (BaseCommand.ERROR, 2**64 - 1)
        assert refused.error.error == ServerError.NotAllowedError
        assert refused.error.message == "Reached the maximum number of connections on address test"

        await until(lambda: second.connection not in service.connections)
        first.connection.close()
        third = await until(lambda: as_admitted(service))
        await until(third.answers)
        assert third.answers()[0].type == BaseCommand.CONNECTED

    def as_admitted(service: Service) -> Peer | None:
        peer = Peer(service)
        return None if peer.transport.closed else peer

    play(tmp_path, story, limits=LimitsConfig(connections_per_ip_max=1))


def test_a_client_with_tls_on_a_plain_port_is_told_apart_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(service: Service) -> None:
        peer = Peer(service, has_to_connect=False)

        peer.send_bytes(b"\x16\x03\x01\x02\x00\x01")

        assert peer.transport.closed
        assert "it speaks TLS, and this port does not" in caplog.text

    play(tmp_path, story)


def test_reading_pauses_while_too_much_waits_for_the_disk(tmp_path: Path) -> None:
    async def story(service: Service) -> None:
        peer = Peer(service, publish_pending_bytes_max=1_000)
        await producer(peer)

        peer.send_bytes(b"".join(send_frame(i, b"x" * 100) for i in range(20)))
        has_paused = not peer.transport.reads
        await until(lambda: peer.transport.reads)

        assert has_paused

    play(tmp_path, story)


def test_what_a_closed_connection_has_sent_counts_for_the_others_until_it_is_stored(tmp_path: Path) -> None:
    """Clients that connect again would otherwise add to the memory for as long as the disk stalls."""

    async def story(service: Service) -> None:
        closed, other, silent = Peer(service), Peer(service), Peer(service)
        await producer(closed)
        await other.request(BaseCommand.PRODUCER, "producer", topic="other", producer_id=1)

        closed.send_bytes(b"".join(send_frame(i, b"x" * 100) for i in range(20)))
        waiting_bytes = service.publish_buffer.size_bytes
        closed.connection.close()
        other.send_bytes(send_frame(0))
        were_reading = (other.transport.reads, silent.transport.reads)
        await until(lambda: other.transport.reads)

        assert waiting_bytes > 2_000
        assert were_reading == (False, True)
        assert service.publish_buffer.size_bytes <= 500

    play(tmp_path, story, publish_buffer_bytes_max=1_000)


def test_a_producer_that_waits_becomes_ready_when_the_topic_is_free(tmp_path: Path) -> None:
    async def story(service: Service) -> None:
        one, other = Peer(service), Peer(service)
        await producer(one, ProducerAccessMode.Exclusive, "one")
        waiting = await producer(other, ProducerAccessMode.WaitForExclusive, "other")

        await one.request(BaseCommand.CLOSE_PRODUCER, "close_producer", producer_id=1)

        def successes() -> list[CommandProducerSuccess]:
            return [one.producer_success for one in other.answers() if one.type == BaseCommand.PRODUCER_SUCCESS]

        await until(lambda: len(successes()) == 2)

        assert not waiting.producer_success.producer_ready
        assert [success.producer_ready for success in successes()] == [False, True]

    play(tmp_path, story)


@pytest.mark.parametrize("epoch", [0, 1])
@pytest.mark.parametrize("does", ["answers", "leaves"])
def test_a_name_is_taken_while_the_connection_of_its_producer_lives(tmp_path: Path, does: str, epoch: int) -> None:
    """The epoch of the next producer does not matter. The time-out is an hour: nothing here waits for it."""

    async def story(service: Service) -> None:
        holder, other = Peer(service), Peer(service)
        await producer(holder, name="p")
        asked = asyncio.ensure_future(
            other.request(BaseCommand.PRODUCER, "producer", topic="t", producer_id=1, producer_name="p", epoch=epoch)
        )
        await until(lambda: any(one.type == BaseCommand.PING for one in holder.answers()))
        if does == "answers":
            holder.send(BaseCommand(type=BaseCommand.PONG, pong={}))
        else:
            holder.connection.close()

        answer = await asked
        if does == "answers":
            assert answer.error.error == ServerError.ProducerBusy
            assert "'p' is already connected to topic 'persistent://public/default/t'" in answer.error.message
        else:
            assert answer.type == BaseCommand.PRODUCER_SUCCESS
        (present,) = service.topics[TopicName.parse("t")].producers.values()
        assert present.link is (holder if does == "answers" else other).connection

    play(tmp_path, story, liveness_timeout_ms=3_600_000)


@pytest.mark.parametrize("way", ["the service stops", "the topic is closed", "another wants it for itself"])
def test_a_producer_is_told_that_it_is_closed_after_all_its_receipts_and_is_refused_from_then_on(
    tmp_path: Path, way: str
) -> None:
    """A C++ client that hears of it before a receipt sends the message again, though it is stored."""

    async def story(service: Service) -> None:
        peer, other = Peer(service), Peer(service)
        await producer(peer, name="p")
        topic = service.topics[TopicName.parse("t")]

        peer.send_bytes(send_frame(0) + send_frame(1))
        if way == "the service stops":
            ending = asyncio.ensure_future(service.close())
        elif way == "the topic is closed":
            ending = service.topics.close(topic)
        else:
            ending = asyncio.ensure_future(producer(other, ProducerAccessMode.ExclusiveWithFencing))
        await until(lambda: not topic.producers.get("p"))
        peer.send_bytes(send_frame(2))
        await ending
        await until(lambda: any(one.type == BaseCommand.CLOSE_PRODUCER for one in peer.answers()))

        kinds = (BaseCommand.SEND_RECEIPT, BaseCommand.CLOSE_PRODUCER)
        answers = [one.type for one in peer.answers() if one.type in kinds]
        assert answers == [BaseCommand.SEND_RECEIPT, BaseCommand.SEND_RECEIPT, BaseCommand.CLOSE_PRODUCER]
        assert topic.entries_in_total == 2

    play(tmp_path, story)


def test_a_producer_that_comes_while_its_topic_is_closed_is_sent_away(tmp_path: Path) -> None:
    """Also where it waits for a sign of life of another one of its name. The time-out is an hour."""

    async def story(service: Service) -> None:
        holder, other = Peer(service), Peer(service)
        await producer(holder, name="p")
        topic = service.topics[TopicName.parse("t")]
        asked = asyncio.ensure_future(producer(other, name="p"))
        await until(lambda: any(one.type == BaseCommand.PING for one in holder.answers()))

        closed = service.topics.close(topic)
        holder.send(BaseCommand(type=BaseCommand.PONG, pong={}))

        assert (await asked).error.error == ServerError.ServiceNotReady
        await closed
        assert topic.producers == {}

    play(tmp_path, story, liveness_timeout_ms=3_600_000)


def test_a_client_that_is_still_sending_reads_all_that_it_was_sent_before_a_stop(tmp_path: Path) -> None:
    """With unread bytes in the socket the kernel would reset the connection: a client may notice that first."""

    async def story(service: Service) -> None:
        loop = asyncio.get_running_loop()
        made: list[Connection] = []

        def connected() -> Connection:
            made.append(Connection(service, HANDLERS))
            return made[0]

        server = await loop.create_server(connected, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        await until(lambda: made)

        made[0].pause_reading("the service stops")
        writer.write(b"x" * 1_000)
        await writer.drain()
        made[0].write(b"a receipt")
        made[0].close()

        assert await reader.read() == b"a receipt"
        writer.close()
        await until(lambda: not service.connections)
        server.close()

    play(tmp_path, story)


def test_a_silent_client_is_pinged_once_and_then_let_go(tmp_path: Path) -> None:
    async def story(service: Service) -> None:
        peer = Peer(service)
        for _ in range(3):
            peer.connection.check_alive()

        assert [one.type for one in peer.answers()].count(BaseCommand.PING) == 1
        assert peer.transport.closed

    play(tmp_path, story)


def test_a_client_is_not_silent_while_nothing_is_read_from_it(tmp_path: Path) -> None:
    """A client that is closed while the disk is behind sends again what waits for its receipt."""

    async def story(service: Service) -> None:
        peer = Peer(service)

        async def pings_after_a_check() -> int:
            peer.connection.check_alive()
            await asyncio.sleep(0)
            return sum(one.type == BaseCommand.PING for one in peer.answers())

        pings_before = [await pings_after_a_check() for _ in range(2)]
        peer.connection.pause_reading("the disk is behind")
        pings_meanwhile = [await pings_after_a_check() for _ in range(3)]
        peer.connection.resume_reading("the disk is behind")
        pings_afterwards = [await pings_after_a_check()]
        was_closed = peer.transport.closed
        peer.connection.check_alive()

        assert (pings_before, pings_meanwhile, pings_afterwards) == ([0, 1], [1, 1, 1], [2])
        assert (was_closed, peer.transport.closed) == (False, True)

    play(tmp_path, story)


def test_a_client_that_reads_no_more_gives_up_its_consumers_at_once(tmp_path: Path) -> None:
    """Its messages and keys must not wait for the last byte that it will never take."""

    async def story(service: Service) -> None:
        hung, healthy = Peer(service), Peer(service)
        await subscribe(hung)
        await subscribe(healthy)
        subscription = service.topics[TopicName.parse("t")].subscriptions["s"]
        hung.transport.client_hangs = True

        for _ in range(3):
            hung.connection.check_alive()
        await until(lambda: len(subscription.consumers) == 1)

        assert next(iter(subscription.consumers)).link is healthy.connection
        assert hung.connection in service.connections

    play(tmp_path, story)


@pytest.mark.parametrize("message_size_max", [5 * 2**20, UNREAD_BYTES_MAX])
def test_answers_that_nobody_reads_end_the_connection(tmp_path: Path, message_size_max: int) -> None:
    """A message of the largest size does not."""

    async def story(service: Service) -> None:
        peer = Peer(service)
        peer.transport.unread_bytes = message_size_max
        peer.send(BaseCommand(type=BaseCommand.PING, ping={}))
        await asyncio.sleep(0)
        assert not peer.transport.closed

        peer.transport.unread_bytes = max(UNREAD_BYTES_MAX, 2 * message_size_max) + 1
        peer.send(BaseCommand(type=BaseCommand.PING, ping={}))
        await asyncio.sleep(0)
        assert peer.transport.closed

    play(tmp_path, story, message_size_max=message_size_max)


def test_reading_pauses_while_too_many_requests_wait(tmp_path: Path) -> None:
    async def story(service: Service) -> None:
        peer = Peer(service)
        ask = BaseCommand(type=BaseCommand.GET_TOPICS_OF_NAMESPACE)
        ask.getTopicsOfNamespace.request_id = 1
        ask.getTopicsOfNamespace.namespace = "public/default"

        peer.send_bytes(frame(ask) * (REQUESTS_MAX + 1))
        has_paused = not peer.transport.reads
        await until(lambda: peer.transport.reads)

        assert has_paused

    play(tmp_path, story)


@pytest.mark.parametrize("has_reader", [False, True])
def test_a_reader_that_is_refused_leaves_no_subscription_behind(tmp_path: Path, *, has_reader: bool) -> None:
    """Its cursor would keep ledgers from being deleted for as long as the topic is in use."""

    async def story(service: Service) -> None:
        peer = Peer(service)
        await producer(peer)
        if has_reader:
            await subscribe(peer, 1, durable=False)

        sticky_without_ranges = KeySharedMeta(keySharedMode=KeySharedMode.STICKY)
        answer = await subscribe(peer, 2, durable=False, keySharedMeta=sticky_without_ranges)

        topic = service.topics[TopicName.parse("t")]
        assert answer.type == BaseCommand.ERROR
        assert [len(one.consumers) for one in topic.subscriptions.values()] == [1] * has_reader
        assert len(topic.ledger.cursors) == has_reader

    play(tmp_path, story)


@pytest.mark.parametrize("way", ["closes its consumer", "leaves"])
def test_a_client_that_ends_its_subscribe_leaves_no_reader_behind(tmp_path: Path, way: str) -> None:
    async def story(service: Service) -> None:
        peer = Peer(service)
        topic = await service.topics.get_or_create(TopicName.parse("t"))
        asked = asyncio.ensure_future(subscribe(peer, durable=False))
        await until(lambda: topic.is_used)
        if way == "leaves":
            peer.connection.connection_lost(None)
            asked.cancel()
        else:
            await peer.request(BaseCommand.CLOSE_CONSUMER, "close_consumer", consumer_id=1)
            await asked
        await until(lambda: not topic.is_used)

        assert not topic.subscriptions
        assert not topic.ledger.cursors

    play(tmp_path, story)


def test_a_reader_that_comes_while_the_last_one_leaves_keeps_its_subscription(tmp_path: Path) -> None:
    """It would be told that it is closed before it is told that it is attached, and wait for messages for ever."""

    async def story(service: Service) -> None:
        holder, other = Peer(service), Peer(service)
        exclusive = {"subType": CommandSubscribe.Exclusive, "durable": False}
        await subscribe(holder, **exclusive)
        asked = asyncio.ensure_future(subscribe(other, **exclusive))
        await until(lambda: any(one.type == BaseCommand.PING for one in holder.answers()))

        await holder.request(BaseCommand.CLOSE_CONSUMER, "close_consumer", consumer_id=1)
        holder.send(BaseCommand(type=BaseCommand.PONG, pong={}))

        assert (await asked).type == BaseCommand.SUCCESS
        (subscription,) = service.topics[TopicName.parse("t")].subscriptions.values()
        assert [one.link for one in subscription.consumers] == [other.connection]

    play(tmp_path, story, liveness_timeout_ms=3_600_000)


@pytest.mark.parametrize("way", ["closes its consumer", "leaves"])
def test_a_reader_whose_log_is_closed_meanwhile_holds_up_no_other_consumer_of_its_connection(
    tmp_path: Path, way: str
) -> None:
    async def story(service: Service) -> None:
        peer = Peer(service)
        await subscribe(peer, 1, topic="closed", durable=False)
        await subscribe(peer, 2, topic="open")
        await service.topics[TopicName.parse("closed")].ledger.close()
        subscription = service.topics[TopicName.parse("open")].subscriptions["s"]

        if way == "leaves":
            peer.connection.connection_lost(None)
            await until(lambda: not subscription.consumers)
        else:
            answer = await peer.request(BaseCommand.CLOSE_CONSUMER, "close_consumer", consumer_id=1)
            assert answer.type == BaseCommand.SUCCESS
            assert len(subscription.consumers) == 1

    play(tmp_path, story)


async def join_alone(peer: Peer, consumer_id: int, kind: str) -> str:
    """Ask for all hash ranges, or for the whole subscription; return the type of the answer."""
    if kind == "ranges":
        meta = KeySharedMeta(keySharedMode=KeySharedMode.STICKY)
        meta.hashRanges.add(start=0, end=65535)
        answer = await subscribe(peer, consumer_id, keySharedMeta=meta)
    else:
        answer = await subscribe(peer, consumer_id, subType=CommandSubscribe.Exclusive)
    return BaseCommand.Type.Name(answer.type)


@pytest.mark.parametrize("kind", ["ranges", "the subscription"])
@pytest.mark.parametrize(("does", "answer"), [("answers", "ERROR"), ("leaves", "SUCCESS"), ("asks itself", "ERROR")])
def test_a_consumer_that_has_something_for_itself_is_asked_when_another_wants_it(
    tmp_path: Path, does: str, answer: str, kind: str
) -> None:
    """The time-out is an hour: nothing here waits for it. The holder that is silent is asked over real sockets."""

    async def story(service: Service) -> None:
        holder = Peer(service)
        other = holder if does == "asks itself" else Peer(service)
        assert await join_alone(holder, 1, kind) == "SUCCESS"
        asked = asyncio.ensure_future(join_alone(other, 2, kind))
        if does != "asks itself":
            await until(lambda: any(one.type == BaseCommand.PING for one in holder.answers()))
        if does == "answers":
            holder.send(BaseCommand(type=BaseCommand.PONG, pong={}))
        elif does == "leaves":
            holder.connection.close()

        assert await asked == answer
        assert holder.transport.closed == (answer == "SUCCESS")

    play(tmp_path, story, liveness_timeout_ms=3_600_000)


@pytest.mark.parametrize("is_classic", [False, True])
def test_consumers_of_a_dispatcher_with_a_defect_come_back_to_a_new_one(tmp_path: Path, *, is_classic: bool) -> None:
    """They are disconnected; their acknowledged messages stay acknowledged, and the rest comes again.

    Stats and metrics show none of them meanwhile.
    """

    async def story(service: Service) -> None:
        peer = Peer(service)
        await producer(peer)
        await subscribe(peer)
        peer.send(BaseCommand(type=BaseCommand.FLOW, flow={"consumer_id": 1, "messagePermits": 100}))
        peer.send_bytes(b"".join(send_frame(i) for i in range(10)))
        subscription = service.topics[TopicName.parse("t")].subscriptions["s"]

        def unacked() -> int:
            return subscription.permits_and_unacked_of(next(iter(subscription.consumers)))[1]

        await until(lambda: unacked() == 10)
        acknowledged = [{"ledgerId": 1, "entryId": 4}]
        peer.send(BaseCommand(type=BaseCommand.ACK, ack={"consumer_id": 1, "ack_type": 0, "message_id": acknowledged}))
        assert subscription.dispatcher is not None
        subscription.dispatcher.stop_for_defect(KeyError(0))

        await until(lambda: [one for one in peer.answers() if one.type == BaseCommand.CLOSE_CONSUMER])
        assert not subscription.consumers
        shown = await subscription_stats(service.topics[TopicName.parse("t")], subscription)
        assert (shown["consumers"], shown["type"]) == ([], "Key_Shared")
        assert (await subscribe(peer, 2)).type == BaseCommand.SUCCESS
        peer.send(BaseCommand(type=BaseCommand.FLOW, flow={"consumer_id": 2, "messagePermits": 100}))
        await until(lambda: unacked() == 9)
        assert (subscription.counters.rebuilds, subscription.problems()) == (1, [])

        subscription.dispatcher.stop_for_defect(KeyError(0))
        answer = await subscribe(peer, 3)
        assert answer.error.error == ServerError.ServiceNotReady

    play(tmp_path, story, dispatcher=DispatcherConfig(use_classic_implementation=is_classic))


@pytest.mark.parametrize(
    ("client_version", "error"), [("Pulsar-CPP-v4.2.0", "ChecksumError"), ("Pulsar-Java-v4.2.4", "NotAllowedError")]
)
def test_a_message_with_too_long_a_delay_is_refused_in_its_turn(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, client_version: str, error: str
) -> None:
    """With an answer that ends it for the client that asked, and a line in the log for all of them."""

    async def story(service: Service) -> None:
        peer = Peer(service, has_to_connect=False)
        peer.send(
            BaseCommand(type=BaseCommand.CONNECT, connect={"client_version": client_version, "protocol_version": 20})
        )
        await producer(peer)
        frames = [send_frame(0), *(send_frame(number, deliver_at_ms=10**9) for number in (1, 2)), send_frame(3)]
        peer.send_bytes(b"".join(frames))
        kinds = (BaseCommand.SEND_RECEIPT, BaseCommand.SEND_ERROR)
        await until(lambda: sum(one.type in kinds for one in peer.answers()) == len(frames))

        answers = [one for one in peer.answers() if one.type in kinds]
        sequence_ids = [
            one.send_receipt.sequence_id if one.type == BaseCommand.SEND_RECEIPT else one.send_error.sequence_id
            for one in answers
        ]
        assert sequence_ids == [0, 1, 2, 3]
        assert [ServerError.Name(one.send_error.error) for one in answers[1:3]] == [error, error]
        assert caplog.text.count("refused a message of producer p of persistent://public/default/t") == 1

    caplog.set_level("INFO")
    play(tmp_path, story, tracker=TrackerConfig(delay_ms_max=1_000))


@pytest.mark.parametrize("client_version", ["Pulsar-Go-v0.19.0", "Pulsar Go v0.14.0-my service"])
def test_a_go_client_hears_why_a_message_was_refused_when_it_returns_and_nothing_is_stored_unseen(
    tmp_path: Path, client_version: str
) -> None:
    """After an error it would hear of no receipt of that producer any more."""

    async def story(service: Service) -> None:
        peer = Peer(service, has_to_connect=False)
        peer.send(
            BaseCommand(type=BaseCommand.CONNECT, connect={"client_version": client_version, "protocol_version": 20})
        )
        await producer(peer)
        topic = service.topics[TopicName.parse("t")]

        peer.send_bytes(send_frame(0) + send_frame(1, deliver_at_ms=10**9) + send_frame(2))
        await until(lambda: any(one.type == BaseCommand.CLOSE_PRODUCER for one in peer.answers()))
        peer.send_bytes(send_frame(3))
        refused = await producer(peer)
        made = await producer(peer)
        peer.send_bytes(send_frame(4))
        await until(lambda: peer.answers()[-1].type == BaseCommand.SEND_RECEIPT)

        assert (refused.type, ServerError.Name(refused.error.error)) == (
            BaseCommand.ERROR,
            "ProducerBlockedQuotaExceededException",
        )
        assert refused.error.message == "Exceeds max allowed delivery delay of 1000 milliseconds"
        assert made.type == BaseCommand.PRODUCER_SUCCESS
        receipts = [one.send_receipt for one in peer.answers() if one.type == BaseCommand.SEND_RECEIPT]
        assert [receipt.sequence_id for receipt in receipts] == [0, 4]
        assert topic.entries_in_total == 2
        assert not any(one.type == BaseCommand.SEND_ERROR for one in peer.answers())

    play(tmp_path, story, tracker=TrackerConfig(delay_ms_max=1_000))


def test_a_producer_that_its_client_closes_after_a_refusal_is_made_anew_without_it(tmp_path: Path) -> None:
    async def story(service: Service) -> None:
        peer = Peer(service, has_to_connect=False)
        connect = {"client_version": "Pulsar-Go-v0.19.0", "protocol_version": 20}
        peer.send(BaseCommand(type=BaseCommand.CONNECT, connect=connect))
        await producer(peer)
        peer.send_bytes(send_frame(0, deliver_at_ms=10**9))
        peer.send(BaseCommand(type=BaseCommand.CLOSE_PRODUCER, close_producer={"producer_id": 1, "request_id": 9}))
        await until(lambda: any(one.type == BaseCommand.SUCCESS for one in peer.answers()))

        assert (await producer(peer)).type == BaseCommand.PRODUCER_SUCCESS

    play(tmp_path, story, tracker=TrackerConfig(delay_ms_max=1_000))
