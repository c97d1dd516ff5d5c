"""Frames that are put together by hand equal, byte for byte, those of the generated classes."""

from hypothesis import given
from hypothesis import strategies as st

from postdate.broker.protocol import frames
from postdate.broker.protocol.pb.pulsar_api_pb2 import BaseCommand
from tests.helpers.wire_frames import framed

# Where varints get longer, and beyond what the tables hold.
EDGES = [0, 1, 127, 128, 2**14 - 1, 2**14, 2**21, 2**28 - 1, 2**28, 2**35, 2**63, 2**64 - 1]
uint64 = st.one_of(st.sampled_from(EDGES), st.integers(0, 2**64 - 1))
count = st.one_of(st.just(0), st.integers(0, 2**32 - 1))
words = st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4).map(tuple)
deliveries = st.tuples(uint64, uint64, count, st.binary(max_size=20), words)


def generated_receipt(producer_id: int, sequence_id: int, ledger_id: int, entry_id: int) -> bytes:
    command = BaseCommand(type=BaseCommand.SEND_RECEIPT)
    command.send_receipt.producer_id = producer_id
    command.send_receipt.sequence_id = sequence_id
    command.send_receipt.message_id.ledgerId = ledger_id
    command.send_receipt.message_id.entryId = entry_id
    return framed(command.SerializeToString())


def generated_message(
    consumer_id: int, delivery: tuple[int, int, int, bytes, tuple[int, ...]], epoch: int | None
) -> bytes:
    ledger_id, entry_id, redelivery_count, entry, ack_set = delivery
    command = BaseCommand(type=BaseCommand.MESSAGE)
    command.message.consumer_id = consumer_id
    command.message.message_id.ledgerId = ledger_id
    command.message.message_id.entryId = entry_id
    if redelivery_count:
        command.message.redelivery_count = redelivery_count
    command.message.ack_set.extend(ack_set)
    if epoch is not None:
        command.message.consumer_epoch = epoch
    return framed(command.SerializeToString(), entry)


@given(st.lists(st.tuples(uint64, uint64, uint64, uint64), max_size=5))
def test_receipts_are_the_generated_bytes(receipts: list[tuple[int, int, int, int]]) -> None:
    """Joined receipts are the generated ones in order."""
    assert frames.send_receipts(receipts) == b"".join(generated_receipt(*receipt) for receipt in receipts)


@given(uint64, st.lists(deliveries, max_size=5), st.one_of(st.none(), uint64))
def test_messages_are_the_generated_bytes(
    consumer_id: int, made: list[tuple[int, int, int, bytes, tuple[int, ...]]], epoch: int | None
) -> None:
    """Joined messages are the generated ones in order, each with its entry as it came."""
    actual = frames.messages(consumer_id, made, consumer_epoch=epoch)

    assert actual == b"".join(generated_message(consumer_id, delivery, epoch) for delivery in made)


def test_an_acknowledgement_set_may_be_long() -> None:
    """A batch of ten thousand messages needs lengths of more than one byte."""
    delivery = (7, 9, 1, b"entry", tuple(range(-80, 80)))

    assert frames.messages(3, [delivery], consumer_epoch=None) == generated_message(3, delivery, None)
