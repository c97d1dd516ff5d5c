"""Frames of Pulsar's binary protocol: split received bytes, and build the frequent commands.

    simple   | total u32 | command size u32 | BaseCommand |
    message  | total u32 | command size u32 | BaseCommand | 0x0e01 | crc32c u32 | metadata size u32 | metadata | data |

Numbers are big endian; `total` leaves out its own four bytes; the checksum covers all bytes behind it. The part from
`0x0e01` on is called *entry* here: it is checked once, at SEND, goes to the log and later to the consumers as it
came, and nothing on that way opens it again.

SEND, SEND_RECEIPT and MESSAGE occur once per message, so they are parsed and built by hand; each is a
third of the generated classes' cost. Everything else goes through the generated classes
(`postdate.broker.protocol.commands`). Source: Pulsar's documentation, "Binary protocol".
"""

from collections.abc import Iterable, Sequence
from functools import partial
from struct import Struct
from typing import Any, Final, NamedTuple, cast

import google_crc32c
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from managed_ledger.entries.message_metadata import (
    CHECKSUM_END,
    MAGIC,
    METADATA_START,
    MessageMetadataError,
    parse_metadata,
)
from managed_ledger.pb.pulsar_metadata_pb2 import MessageMetadata
from postdate.broker.protocol.errors import FrameTooLargeError, ProtocolError
from postdate.broker.protocol.pb.pulsar_api_pb2 import BaseCommand

MESSAGE_SIZE_MAX_DEFAULT: Final = 5 * 1024 * 1024
"""Pulsar's `maxMessageSize`: metadata and payload together."""

FRAME_PADDING: Final = 10 * 1024
"""Bytes of a frame besides its message: the command itself and the lengths."""

_TWO_U32: Final = Struct(">II")
_U32: Final = Struct(">I")
# Field 1 (type) = SEND, then field 6 (send), whose one-byte length follows.
_SEND_PREFIX: Final = b"\x08\x06\x32"
_MESSAGE_COUNT_MAX: Final = 2**31 - 1
_INT64_MAX: Final = 2**63 - 1


class Send(NamedTuple):
    """A SEND whose checksum is right."""

    producer_id: int
    sequence_id: int
    num_messages: int
    metadata: MessageMetadata
    entry: bytes
    highest_sequence_id: int = 0
    """That of the last message of a batch; 0 where the client gives none."""


# This costs half as much as the constructor that NamedTuple writes. One call below gives all fields.
_new_send: Final = partial(tuple.__new__, Send)


class CorruptSend(NamedTuple):
    """A SEND whose checksum is wrong; the client is asked to send it again."""

    producer_id: int
    sequence_id: int


Frame = Send | CorruptSend | BaseCommand

UnparsedFrame = tuple[bytes, int, int, int]
"""Bytes that hold a frame whole, and where in them its command begins, its command ends, and it ends."""


_HTTP_BEGINNINGS: Final = frozenset(
    {b"GET ", b"HEAD", b"POST", b"PUT ", b"DELE", b"OPTI", b"PATC", b"CONN", b"TRAC", b"PRI "}
)
"""The first four bytes of requests of HTTP, by method; as the size of a frame each is above a gigabyte."""

_HTTP_ADVICE: Final = ": this looks like HTTP, which the web port speaks (webServicePort)"


class FrameSplitter:
    """Cuts the byte stream of one connection into frames.

    Args:
        message_size_max: Largest message, in bytes of metadata and payload.
    """

    def __init__(self, message_size_max: int = MESSAGE_SIZE_MAX_DEFAULT) -> None:
        self._frame_size_max = message_size_max + FRAME_PADDING
        self._pending = bytearray()
        self._size_needed = _TWO_U32.size

    def feed(self, chunk: bytes) -> list[UnparsedFrame]:
        """Take the bytes that were received next and give every frame they complete, each for `parse_frame`.

        Raises:
            ProtocolError: The bytes are no frames. The frames before the fault are lost with it: the connection
                has to be closed, and its client sends unanswered messages again.
        """
        data = chunk
        if self._pending:
            self._pending += chunk
            if len(self._pending) < self._size_needed:
                # Going on only when a frame is whole keeps a frame of many chunks linear, however small they are.
                return []
            data = bytes(self._pending)
        frames: list[UnparsedFrame] = []
        start, end = 0, len(data)
        self._size_needed = _TWO_U32.size
        while end - start >= _TWO_U32.size:
            total, command_size = _TWO_U32.unpack_from(data, start)
            if total > self._frame_size_max:
                advice = _HTTP_ADVICE if data[start : start + 4] in _HTTP_BEGINNINGS else ""
                raise FrameTooLargeError(f"frame of {total} bytes, more than {self._frame_size_max}{advice}")
            if command_size + 4 > total:
                raise ProtocolError(f"command of {command_size} bytes in a frame of {total}")
            if end - start < 4 + total:
                self._size_needed = 4 + total
                break
            command_start = start + _TWO_U32.size
            start += 4 + total
            frames.append((data, command_start, command_start + command_size, start))
        if end - start >= 4 and int.from_bytes(data[start : start + 4], "big") < 4:
            raise ProtocolError("frame without a command")
        self._pending = bytearray(data[start:])
        return frames


def parse_frame(data: bytes, start: int, command_end: int, frame_end: int) -> Frame:
    """Parse a frame. It takes as long as to handle it, so a chunk of hundreds is not parsed in one turn of the loop.

    Raises:
        ProtocolError: It is none; the connection has to be closed.
    """
    if data.startswith(_SEND_PREFIX, start):
        ids = _send_ids(data, start + 3, command_end)
        if ids is not None:
            return _parse_entry(*ids, data[command_end:frame_end], 0)
    command = _parse_command(data[start:command_end])
    if command.type != BaseCommand.SEND:
        return command
    send = command.send
    entry = data[command_end:frame_end]
    return _parse_entry(send.producer_id, send.sequence_id, send.num_messages, entry, send.highest_sequence_id)


def _send_ids(data: bytes, start: int, end: int) -> tuple[int, int, int] | None:
    """Read the shape that clients send: length, producer id, sequence id and perhaps the number of messages.

    Half the cost of the generated class. None for anything else, be it legal or not.
    """
    # The shortest has two fields of two bytes.
    if end - start < 5 or data[start] != end - start - 1 or data[start + 1] != 0x08:
        return None
    producer_id, at = data[start + 2], start + 3
    if producer_id > 0x7F:
        producer_id, at = _varint(data, start + 2, end)
    if end - at < 2 or data[at] != 0x10:
        return None
    sequence_id, at = data[at + 1], at + 2
    if sequence_id > 0x7F:
        sequence_id, at = _varint(data, at - 1, end)
    if at == end:
        return producer_id, sequence_id, 1
    if end - at != 2 or data[at] != 0x18 or data[at + 1] > 0x7F:
        return None
    return producer_id, sequence_id, data[at + 1]


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Read a number; return it and where it ends: behind `end` where it does not, or where it has over nine bytes.

    So many hold any id that a client counts up to; more is left to the generated class.
    """
    value = shift = 0
    while at < end and shift <= 56:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte <= 0x7F:
            return value, at
        shift += 7
    return 0, end + 1


def _parse_entry(
    producer_id: int, sequence_id: int, num_messages: int, entry: bytes, highest_sequence_id: int
) -> Send | CorruptSend:
    if not entry.startswith(MAGIC):
        # Clients older than protocol version 6 send no checksum; from here on every entry has one.
        entry = MAGIC + _U32.pack(google_crc32c.value(entry)) + entry
    size = len(entry)
    if size < METADATA_START:
        raise ProtocolError(f"message of {size} bytes is shorter than its own header")
    checksum, metadata_size = _TWO_U32.unpack_from(entry, 2)
    if google_crc32c.value(entry[CHECKSUM_END:]) != checksum:
        return CorruptSend(producer_id, sequence_id)
    metadata_end = METADATA_START + metadata_size
    if metadata_end > size:
        raise ProtocolError(f"metadata of {metadata_size} bytes in a message of {size}")
    if not 0 < num_messages <= _MESSAGE_COUNT_MAX:
        raise ProtocolError(f"message that counts as {num_messages}")
    header = entry[METADATA_START:metadata_end]
    try:
        metadata = parse_metadata(header)
    except MessageMetadataError as error:
        raise ProtocolError(str(error)) from error
    # The parser lets required fields be missing; consumers' parsers do not, and would stumble over the entry for
    # ever. Asking it costs as much as parsing did, so it is asked only when a cheap look is not enough: whether the
    # first field is the producer's name, and whether there may be nested fields (properties, encryption keys).
    publish_time = metadata.publish_time
    if not (publish_time and metadata.sequence_id and header[0] == 0x0A) or b"\x22" in header or b"\x6a" in header:
        _check_complete(metadata)
    if publish_time > _INT64_MAX:
        raise ProtocolError(f"publish time {publish_time} does not fit 63 bits")
    return _new_send((producer_id, sequence_id, num_messages, metadata, entry, highest_sequence_id))


def _parse_command(data: bytes) -> BaseCommand:
    """Parse any command with the generated class, and see to it that its handler can rely on its fields.

    Raises:
        ProtocolError: It cannot be parsed, is of an unknown type, or lacks a required field.
    """
    try:
        command = BaseCommand.FromString(data)
    except DecodeError as error:
        raise ProtocolError(f"command that cannot be parsed: {error}") from error
    if not command.HasField("type"):
        # A value that the schema does not know reads as if it were missing, and missing as the first one, CONNECT.
        raise ProtocolError("command of an unknown type")
    # Each command stands in the field whose number is its type. Types without one are refused by the connection.
    field = BaseCommand.DESCRIPTOR.fields_by_number.get(command.type)
    if field is not None and not command.HasField(field.name):
        raise ProtocolError(f"command of type {command.type} without its content")
    _check_complete(command)
    if command.type not in _WITHOUT_TEXT:
        _check_text(command)
    return command


def _check_complete(message: Message) -> None:
    if not message.IsInitialized():
        # The method is there; the library's type stubs leave it out.
        missing = ", ".join(cast("Any", message).FindInitializationErrors())
        raise ProtocolError(f"{message.DESCRIPTOR.name} without {missing}")


_WITHOUT_TEXT: Final = frozenset(
    {
        BaseCommand.ACK,
        BaseCommand.FLOW,
        BaseCommand.PING,
        BaseCommand.PONG,
        BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES,
        BaseCommand.SEND,
    }
)
"""Commands that come often and of which no text is read."""


def _check_text(message: Message) -> None:
    """Refuse text that is not UTF-8: the parser hands it on as bytes, and handlers count on text."""
    for field, value in message.ListFields():
        for one in value if field.is_repeated else (value,):
            if field.type == FieldDescriptor.TYPE_STRING and not isinstance(one, str):
                raise ProtocolError(f"{field.full_name} is not UTF-8")
            if field.type == FieldDescriptor.TYPE_MESSAGE:
                _check_text(one)


def _encode_varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


_SMALL_VARINTS: Final = [_encode_varint(value) for value in range(1 << 14)]
_LOW_HALVES: Final = [bytes((value & 0x7F | 0x80, value >> 7 | 0x80)) for value in range(1 << 14)]
"""The first two bytes of a varint that has more."""


def varint(value: int) -> bytes:
    """Encode a non-negative integer as protobuf does.

    >>> varint(300).hex()
    'ac02'
    """
    return _SMALL_VARINTS[value] if value < 1 << 14 else _encode_varint(value)


def _entry_varint(entry_id: int) -> bytes:
    """Do what `varint` does, faster for what entry ids are: below 2^28, mostly of three bytes."""
    if entry_id < 1 << 14:
        return _SMALL_VARINTS[entry_id]
    if entry_id < 1 << 28:
        return _LOW_HALVES[entry_id & 0x3FFF] + _SMALL_VARINTS[entry_id >> 14]
    return _encode_varint(entry_id)


def send_receipts(receipts: Iterable[tuple[int, int, int, int]]) -> bytes:
    """Build the SEND_RECEIPT frames of many messages.

    Args:
        receipts: (producer id, sequence id, ledger id, entry id) of each, in SEND order.
    """
    frames = []
    last_ledger_id, ledger = -1, b""
    for producer_id, sequence_id, ledger_id, entry_id in receipts:
        if ledger_id != last_ledger_id:
            last_ledger_id, ledger = ledger_id, b"\x08" + varint(ledger_id) + b"\x10"
        producer, sequence, entry = varint(producer_id), _entry_varint(sequence_id), _entry_varint(entry_id)
        id_size = len(ledger) + len(entry)
        # Type, field 7 and three lengths of one byte each: the ids take 54 bytes at the most.
        size = 4 + len(producer) + len(sequence) + id_size
        frames.append(
            b"\0\0\0%c\0\0\0%c\x08\x07\x3a%c\x08%b\x10%b\x1a%c%b%b"
            % (size + 8, size + 4, size, producer, sequence, id_size, ledger, entry)
        )
    return b"".join(frames)


def messages(
    consumer_id: int,
    deliveries: Iterable[tuple[int, int, int, bytes, Sequence[int]]],
    *,
    consumer_epoch: int | None = None,
) -> bytes:
    """Build the MESSAGE frames of many entries.

    Args:
        consumer_id: The consumer of the connection that they are for.
        deliveries: Of each: ledger id, entry id, how often it was delivered before, what SEND brought from the magic
            number on, and the acknowledgement words of a batch (bit 1 for what is not acknowledged; empty for "all").
        consumer_epoch: The epoch of the consumer's last redelivery request, where it names one.
    """
    parts: list[bytes] = []
    consumer = b"\x08" + varint(consumer_id) + b"\x12"
    epoch = b"" if consumer_epoch is None else b"\x28" + varint(consumer_epoch)
    last: tuple[int, int, int, Sequence[int]] | None = None
    head = tail = b""
    size = 0
    for ledger_id, entry_id, redelivery_count, entry, ack_set in deliveries:
        number = _entry_varint(entry_id)
        this = (ledger_id, len(number), redelivery_count, ack_set)
        # Most messages are like the one before them but for the number of the entry.
        if this != last:
            last = this
            tail = _tail(ack_set, redelivery_count, epoch) if redelivery_count or ack_set else epoch
            ledger = b"\x08" + varint(ledger_id) + b"\x10"
            id_size = len(ledger) + len(number)
            body_length = varint(len(consumer) + 1 + id_size + len(tail))
            # Type, field 9 and its length stand before the body; the id takes 22 bytes at the most.
            head = b"\x08\x09\x4a%b%b%c%b" % (body_length, consumer, id_size, ledger)
            size = len(head) + len(number) + len(tail)
        parts += (_TWO_U32.pack(4 + size + len(entry), size), head, number, tail, entry)
    return b"".join(parts)


def _tail(ack_set: Sequence[int], redelivery_count: int, epoch: bytes) -> bytes:
    words = b"".join([b"\x20" + varint(word & 0xFFFF_FFFF_FFFF_FFFF) for word in ack_set])
    return (b"\x18" + varint(redelivery_count) if redelivery_count else b"") + words + epoch
