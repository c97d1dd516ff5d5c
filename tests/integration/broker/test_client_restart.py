"""Postdate through a kill and a start: confirmed messages are there, and clients come back by themselves.

Postdate alone: these stories need a service of their own, and a real Pulsar takes many seconds to come back.
"""

import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest
from pulsar import ConsumerType

from postdate.demo.process import PostdateProcess, ProcessStartError
from tests.helpers.services.programs.clients import (
    Clients,
    nothing_comes,
    now_ms,
    receive,
    receive_and_ack,
    send_all,
    subscribe,
    texts,
    wait_for,
)
from tests.helpers.services.services import POSTDATE, make_service

SMALL_LEDGERS = {
    "managedLedgerMaxEntriesPerLedger": "50",
    "delayedDeliveryMinIndexCountPerBucket": "50",
}
ACK_GROUP_S = 0.3
"""The client groups acknowledgements for 100 ms before it sends them."""


@pytest.fixture
def own_service(tmp_path: Path) -> Iterator[PostdateProcess]:
    """A service of this test's own, to be killed."""
    service = make_service(POSTDATE, tmp_path, SMALL_LEDGERS)
    assert isinstance(service, PostdateProcess)
    service.start()
    yield service
    service.stop()


@pytest.fixture
def own_clients(own_service: PostdateProcess) -> Iterator[Clients]:
    """Clients of that service."""
    made = Clients(own_service.url)
    yield made
    made.close()


def kill_and_start(service: PostdateProcess) -> None:
    """End the service in the middle of its work, and start it on the same data."""
    service.kill()
    service.start()


@pytest.mark.parametrize("kind", [ConsumerType.Shared, ConsumerType.KeyShared, ConsumerType.Exclusive])
def test_a_kill_loses_nothing_and_brings_back_nothing(
    own_service: PostdateProcess, own_clients: Clients, topic: str, kind: ConsumerType
) -> None:
    """Acknowledged messages stay away, all others come, with all that they carry, to the same consumer object."""
    client = own_clients.new()
    consumer = subscribe(client, topic, kind)
    producer = client.create_producer(topic)
    send_all(producer, [str(i) for i in range(300)], partition_key="k", properties={"p": "v"})
    messages = receive(consumer, 300)
    for message in messages[::2]:
        consumer.acknowledge(message)
    time.sleep(ACK_GROUP_S)

    kill_and_start(own_service)
    again = receive_and_ack(consumer, 150)

    assert texts(again) == texts(messages[1::2])
    assert all(message.properties() == {"p": "v"} for message in again)
    assert nothing_comes(consumer)
    producer.send(b"and on", partition_key="k")
    assert texts(receive_and_ack(consumer, 1)) == ["and on"]


def test_delays_are_kept_over_a_kill(own_service: PostdateProcess, own_clients: Clients, topic: str) -> None:
    """Messages that fell due meanwhile come at once and in order of time, the rest at their time."""
    client = own_clients.new()
    consumer = subscribe(client, topic, ConsumerType.KeyShared)
    producer = client.create_producer(topic)
    start_ms = now_ms() + 300
    count = 400
    # Sent in reverse, so that the order of the log is not the order of the times.
    due = {str(i): start_ms + i * 10 for i in range(count)}
    for text in reversed(due):
        producer.send_async(text.encode(), None, deliver_at=due[text], partition_key="k")
    producer.flush()

    time.sleep(0.8)
    before = receive_and_ack(consumer, 20)
    time.sleep(ACK_GROUP_S)
    kill_and_start(own_service)
    started_ms = now_ms()
    after = []
    while len({*texts(before), *texts(after)}) < count:
        message = consumer.receive(10_000)
        assert now_ms() >= due[message.data().decode()]
        consumer.acknowledge(message)
        after.append(message)

    numbers = [int(text) for text in texts(after)]
    assert [int(text) for text in texts(before)] == list(range(20))
    assert list(dict.fromkeys(numbers)) == list(range(20, count))
    # Messages in the consumer's queue when the connection broke may be handed out and come again; no others do.
    twice = [number for number in set(numbers) if numbers.count(number) > 1]
    assert all(due[str(number)] < started_ms for number in twice)
    assert nothing_comes(consumer)


def test_what_had_a_receipt_is_there_after_a_kill(
    own_service: PostdateProcess, own_clients: Clients, topic: str
) -> None:
    """A producer that is sending all the time loses no message that it was told is safe, and sends the rest again."""
    client = own_clients.new()
    producer = client.create_producer(topic, max_pending_messages=10_000)
    confirmed: list[int] = []
    ended = threading.Event()

    def send() -> None:
        number = 0
        while not ended.is_set():
            producer.send_async(str(number).encode(), lambda result, _id, n=number: note(result, n))
            number += 1
            time.sleep(0.0005)

    def note(result: pulsar.Result, number: int) -> None:
        if result == pulsar.Result.Ok:
            confirmed.append(number)

    sender = threading.Thread(target=send)
    sender.start()
    time.sleep(0.7)
    before_kill = len(confirmed)
    kill_and_start(own_service)
    time.sleep(0.7)
    ended.set()
    sender.join()
    producer.flush()

    consumer = subscribe(client, topic)
    received = [int(text) for text in texts(receive_until(consumer, set(confirmed)))]

    assert 0 < before_kill < len(confirmed)
    first_seen = list(dict.fromkeys(received))
    assert first_seen == sorted(first_seen)


def receive_until(consumer: pulsar.Consumer, wanted: set[int]) -> list[pulsar.Message]:
    """Receive until every wanted number has come; a message sent again may come twice."""
    messages = []
    missing = set(wanted)
    while missing:
        message = consumer.receive(10_000)
        missing.discard(int(message.data()))
        messages.append(message)
    return messages


def test_a_polite_stop_is_clean(own_service: PostdateProcess, own_clients: Clients, topic: str) -> None:
    """SIGTERM ends the service with 0, and nothing comes twice afterwards."""
    client = own_clients.new()
    consumer = subscribe(client, topic)
    send_all(client.create_producer(topic), ["a", "b", "c"])
    consumer.acknowledge(receive(consumer, 3)[0])
    time.sleep(ACK_GROUP_S)

    code = own_service.stop()
    own_service.start()

    assert code == 0
    assert texts(receive_and_ack(consumer, 2)) == ["b", "c"]


def test_a_polite_stop_lets_no_message_be_stored_twice(
    own_service: PostdateProcess, own_clients: Clients, topic: str
) -> None:
    """A producer that is sending all the time has its receipts before it is told to come again."""
    client = own_clients.new()
    subscribe(client, topic).close()
    producer = client.create_producer(topic, max_pending_messages=10_000)
    sent: list[str] = []
    ended = threading.Event()

    def send() -> None:
        while not ended.is_set():
            sent.append(str(len(sent)))
            producer.send_async(sent[-1].encode(), None)
            # Commits are always under way, and the client's queue does not fill while the service is away.
            time.sleep(0.0005)

    sender = threading.Thread(target=send)
    sender.start()
    wait_for(lambda: len(sent) >= 500)
    own_service.stop()
    own_service.start()
    ended.set()
    sender.join()
    producer.flush()

    consumer = subscribe(client, topic)
    assert texts(receive(consumer, len(sent))) == sent
    assert nothing_comes(consumer)


def test_subscriptions_and_seeks_are_remembered(own_service: PostdateProcess, own_clients: Clients, topic: str) -> None:
    """Where a subscription was put, it stays, and one that was removed stays removed."""
    client = own_clients.new()
    producer = client.create_producer(topic)
    subscribe(client, topic, subscription="gone").unsubscribe()
    consumer = subscribe(client, topic)
    ids = send_all(producer, [str(i) for i in range(120)])
    receive_and_ack(consumer, 120)
    consumer.seek(ids[99])

    kill_and_start(own_service)

    assert texts(receive_and_ack(consumer, 20)) == [str(i) for i in range(100, 120)]
    gone = subscribe(client, topic, subscription="gone", initial_position=pulsar.InitialPosition.Latest)
    assert nothing_comes(gone)


def test_a_data_folder_in_use_is_refused(own_service: PostdateProcess, tmp_path: Path) -> None:
    """A second service on the same folder ends at once and says what is wrong; the first one lives."""
    second = PostdateProcess(tmp_path / "second", {"dataDirectory": str(own_service.folder / "data")})

    with pytest.raises(ProcessStartError, match=r"(?i)in use|lock"):
        second.start()

    assert own_service.read("/health")


def test_an_interrupted_start_can_be_started_again(own_service: PostdateProcess) -> None:
    """Killed again and again while it starts, the service still comes up."""
    for delay_s in (0.0, 0.1, 0.2, 0.4):
        own_service.kill()
        own_service.start(wait=False)
        time.sleep(delay_s)
    own_service.kill()
    own_service.start()

    assert own_service.read("/health")


def test_ctrl_c_is_a_polite_stop_too(own_service: PostdateProcess) -> None:
    """SIGINT, as from a terminal, ends the service cleanly."""
    process = own_service.process
    assert isinstance(process, subprocess.Popen)

    process.send_signal(signal.SIGINT)

    assert process.wait(timeout=20) == 0


def test_a_terminal_that_is_closed_is_a_polite_stop_too(own_service: PostdateProcess) -> None:
    """SIGHUP ends the service cleanly, as SIGTERM does."""
    process = own_service.process
    assert isinstance(process, subprocess.Popen)

    process.send_signal(signal.SIGHUP)

    assert process.wait(timeout=20) == 0
