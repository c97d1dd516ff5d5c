"""Frames that the splitter refuses; each refusal is the reason that is logged before the connection closes."""

import struct
import zlib

import google_crc32c
import pytest

from managed_ledger.pb.pulsar_metadata_pb2 import MessageMetadata
from postdate.broker.protocol import commands
from postdate.broker.protocol.errors import FrameTooLargeError, ProtocolError
from postdate.broker.protocol.frames import FRAME_PADDING, CorruptSend, FrameSplitter, Send
from postdate.broker.protocol.pb.pulsar_api_pb2 import BaseCommand, CommandPartitionedTopicMetadata
from tests.helpers.parsed_frames import frames_in
from tests.helpers.wire_frames import entry_of, framed


def metadata_with(**changes: object) -> MessageMetadata:
    metadata = MessageMetadata(producer_name="p", sequence_id=1, publish_time=2)
    for name, value in changes.items():
        setattr(metadata, name, value)
    return metadata


def send_command(*, num_messages: int | None = None) -> bytes:
    command = BaseCommand(type=BaseCommand.SEND)
    command.send.producer_id, command.send.sequence_id = 3, 9
    if num_messages is not None:
        command.send.num_messages = num_messages
    return command.SerializeToString()


def test_a_send_comes_with_its_entry_unchanged() -> None:
    entry = entry_of(metadata_with(partition_key=b"k").SerializeToString())

    (send,) = frames_in(framed(send_command(num_messages=4), entry))

    assert isinstance(send, Send)
    assert (send.producer_id, send.sequence_id, send.num_messages, send.entry) == (3, 9, 4, entry)
    assert send.metadata.partition_key == b"k"


def test_a_send_without_a_checksum_gets_one() -> None:
    """Clients older than protocol version 6 send none."""
    entry = entry_of(metadata_with().SerializeToString())

    (send,) = frames_in(framed(send_command(), entry[6:]))

    assert isinstance(send, Send)
    assert send.entry == entry


def test_a_wrong_checksum_is_reported_with_its_message() -> None:
    entry = bytearray(entry_of(metadata_with().SerializeToString()))
    entry[-1] ^= 1

    assert frames_in(framed(send_command(), bytes(entry))) == [CorruptSend(3, 9)]


def test_the_checksum_is_castagnoli_not_zlib() -> None:
    entry = entry_of(metadata_with().SerializeToString())
    zlib_entry = entry[:2] + struct.pack(">I", zlib.crc32(entry[6:])) + entry[6:]

    assert frames_in(framed(send_command(), zlib_entry)) == [CorruptSend(3, 9)]


def test_the_largest_frame_is_taken_and_the_next_one_refused() -> None:
    """The limit is that of the message and the padding for its command, without the frame's own length."""
    size = 1024 + FRAME_PADDING
    command = commands.frame(BaseCommand(type=BaseCommand.PING, ping={}))[8:]
    fitting = framed(command, bytes(size - 4 - len(command)))

    assert len(frames_in(fitting, FrameSplitter(1024))) == 1
    with pytest.raises(FrameTooLargeError, match=f"frame of {size + 1} bytes, more than {size}"):
        FrameSplitter(1024).feed(struct.pack(">II", size + 1, 4))


def test_a_too_large_frame_is_refused_before_it_arrives() -> None:
    with pytest.raises(FrameTooLargeError):
        FrameSplitter(1024).feed(struct.pack(">II", 2**32 - 1, 4))


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"])
def test_a_request_of_http_is_named_as_such(method: str) -> None:
    with pytest.raises(FrameTooLargeError, match="this looks like HTTP, which the web port speaks"):
        FrameSplitter().feed(f"{method} /metrics HTTP/1.1\r\n".encode())


def text_that_is_no_text() -> bytes:
    good = BaseCommand(
        type=BaseCommand.PARTITIONED_METADATA,
        partitionMetadata=CommandPartitionedTopicMetadata(topic="topic", request_id=1),
    )
    return good.SerializeToString().replace(b"topic", b"t\xffpic")


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (struct.pack(">II", 8, 5), "command of 5 bytes in a frame of 8"),
        (struct.pack(">II", 0, 0), "command of 0 bytes in a frame of 0"),
        (framed(b"\xff\xff\xff"), "command that cannot be parsed"),
        (framed(b""), "unknown type"),
        (framed(b"\x08\x7f"), "unknown type"),
        (framed(b"\x08\x04"), "type 4 without its content"),
        (framed(b"\x08\x06"), "type 6 without its content"),
        (framed(b"\x08\x0b\x5a\x02\x08\x01"), "without flow.messagePermits"),
        (framed(text_that_is_no_text()), "topic is not UTF-8"),
        (framed(send_command(), b"\x0e\x01\0\0"), "shorter than its own header"),
        (framed(send_command(num_messages=0), entry_of(metadata_with().SerializeToString())), "counts as 0"),
        (framed(send_command(num_messages=-1), entry_of(metadata_with().SerializeToString())), "counts as -1"),
        (framed(send_command(), entry_of(b"\xff\xff")), "metadata that cannot be parsed"),
        (framed(send_command(), entry_of(b"")), "MessageMetadata without producer_name"),
        (framed(send_command(), entry_of(b"\x0a\x01p\x10\x01")), "MessageMetadata without publish_time"),
        (framed(send_command(), entry_of(metadata_with(publish_time=2**63).SerializeToString())), "63 bits"),
    ],
)
def test_nonsense_is_refused_with_its_reason(frame: bytes, reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason):
        frames_in(frame)


def test_metadata_that_reaches_beyond_its_message_is_refused() -> None:
    covered = struct.pack(">I", 1000) + b"\x0a\x01p"
    entry = b"\x0e\x01" + struct.pack(">I", google_crc32c.value(covered)) + covered

    with pytest.raises(ProtocolError, match="metadata of 1000 bytes in a message of 13"):
        frames_in(framed(send_command(), entry))


def test_a_property_without_a_value_is_refused() -> None:
    """Consumers' parsers refuse it too, and would stumble over the stored entry for ever."""
    metadata = metadata_with().SerializeToString() + b"\x22\x03\x0a\x01k"

    with pytest.raises(ProtocolError, match=r"without properties\[0\].value"):
        frames_in(framed(send_command(), entry_of(metadata)))


def test_a_command_of_a_kind_that_is_not_spoken_keeps_its_type() -> None:
    """So that the connection can say which one it refuses."""
    (command,) = frames_in(framed(b"\x08\x40\x82\x04\x02\x08\x01"))

    assert isinstance(command, BaseCommand)
    assert command.type == BaseCommand.WATCH_TOPIC_LIST


def test_each_command_stands_in_the_field_of_its_number() -> None:
    """The splitter relies on it to see that a command has its content."""
    fields = BaseCommand.DESCRIPTOR.fields_by_number

    assert {number for number in fields if number != 1} <= set(BaseCommand.Type.values())
