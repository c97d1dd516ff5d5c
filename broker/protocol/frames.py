"""Frames of Pulsar's binary protocol: cut what comes in, put together what goes out often.

    simple     | total u32 | command size u32 | BaseCommand |
    with data  | total u32 | command size u32 | BaseCommand | 0x0e01 | crc32c u32 | metadata size u32 | metadata | payload |

Big endian; `total` leaves out its own four bytes; the checksum covers everything behind itself. The part from
`0x0e01` on is called *entry* here: it is checked once, at SEND, goes to the log and later to the consumers as it
came, and nothing on that way opens it again.

SEND, SEND_RECEIPT and MESSAGE occur once per message, so they are taken apart and put together by hand; each is a
third of the generated classes' cost. Everything else goes through the generated classes (`broker.protocol.commands`).
Source: Pulsar's documentation, "Binary protocol".
"""

from collections.abc import Iterable, Sequence
from struct import Struct
from typing import Final, NamedTuple

import google_crc32c
from google.protobuf.message import DecodeError

from broker.protocol.errors import FrameTooLargeError, ProtocolError
from broker.protocol.pb.pulsar_api_pb2 import BaseCommand, CommandSend, MessageMetadata

MESSAGE_SIZE_MAX_DEFAULT: Final = 5 * 1024 * 1024
"""Pulsar's `maxMessageSize`: metadata and payload together."""

FRAME_PADDING: Final = 10 * 1024
"""What a frame may hold besides its message: the command itself and the lengths."""

_TWO_U32: Final = Struct(">II")
_U32: Final = Struct(">I")
_MAGIC: Final = b"\x0e\x01"
_CHECKSUM_END: Final = 6  # Magic and checksum; what follows is covered by the checksum.
_METADATA_START: Final = 10
# Field 1 (type) = SEND, then field 6 (send), whose one-byte length follows.
_SEND_PREFIX: Final = b"\x08\x06\x32"


class Send(NamedTuple):
    """A SEND whose checksum is right."""

    producer_id: int
    sequence_id: int
    num_messages: int
    metadata: MessageMetadata
    entry: bytes


class CorruptSend(NamedTuple):
    """A SEND whose checksum is wrong; the client is asked to send it again."""

    producer_id: int
    sequence_id: int


Frame = Send | CorruptSend | BaseCommand


class FrameSplitter:
    """Cuts the byte stream of one connection into frames.

    Args:
        message_size_max: Largest message, in bytes of metadata and payload.
    """

    def __init__(self, message_size_max: int = MESSAGE_SIZE_MAX_DEFAULT) -> None:
        self._frame_size_max = message_size_max + FRAME_PADDING
        self._parts: list[bytes] = []
        self._size = 0
        self._size_needed = _TWO_U32.size

    def feed(self, chunk: bytes) -> list[Frame]:
        """Take the bytes that were received next and give every frame they complete.

        Raises:
            ProtocolError: The bytes are no frames. The frames before the fault are lost with it: the connection
                has to be closed, and its client sends again what was not answered.
        """
        self._parts.append(chunk)
        self._size += len(chunk)
        if self._size < self._size_needed:
            # Joining only when a frame is whole keeps a frame of many chunks linear.
            return []
        data = chunk if len(self._parts) == 1 else b"".join(self._parts)
        frames: list[Frame] = []
        start, end = 0, len(data)
        self._size_needed = _TWO_U32.size
        while end - start >= _TWO_U32.size:
            total, command_size = _TWO_U32.unpack_from(data, start)
            self._check_sizes(total, command_size)
            if end - start < 4 + total:
                self._size_needed = 4 + total
                break
            command_start = start + _TWO_U32.size
            start += 4 + total
            frames.append(_parse(data, command_start, command_start + command_size, start))
        rest = data[start:]
        self._parts = [rest] if rest else []
        self._size = len(rest)
        return frames

    def _check_sizes(self, total: int, command_size: int) -> None:
        if total > self._frame_size_max:
            raise FrameTooLargeError(f"frame of {total} bytes, more than {self._frame_size_max}")
        if command_size + 4 > total:
            raise ProtocolError(f"command of {command_size} bytes in a frame of {total}")


def _parse(data: bytes, start: int, command_end: int, frame_end: int) -> Frame:
    try:
        if data.startswith(_SEND_PREFIX, start) and data[start + 3] == command_end - start - 4:
            return _parse_send(CommandSend.FromString(data[start + 4 : command_end]), data[command_end:frame_end])
        command = BaseCommand.FromString(data[start:command_end])
        if command.type == BaseCommand.SEND:
            return _parse_send(command.send, data[command_end:frame_end])
    except (DecodeError, IndexError) as error:
        raise ProtocolError(f"command that cannot be parsed: {error}") from error
    return command


def _parse_send(send: CommandSend, entry: bytes) -> Send | CorruptSend:
    if not entry.startswith(_MAGIC):
        # Clients older than protocol version 6 send no checksum; from here on every entry has one.
        entry = _MAGIC + _U32.pack(google_crc32c.value(entry)) + entry
    if len(entry) < _METADATA_START:
        raise ProtocolError(f"message of {len(entry)} bytes is shorter than its own header")
    checksum, metadata_size = _TWO_U32.unpack_from(entry, len(_MAGIC))
    if google_crc32c.value(entry[_CHECKSUM_END:]) != checksum:
        return CorruptSend(send.producer_id, send.sequence_id)
    if _METADATA_START + metadata_size > len(entry):
        raise ProtocolError(f"metadata of {metadata_size} bytes in a message of {len(entry)}")
    metadata = MessageMetadata.FromString(entry[_METADATA_START : _METADATA_START + metadata_size])
    return Send(send.producer_id, send.sequence_id, send.num_messages, metadata, entry)


def _encode_varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


_SMALL_VARINTS: Final = [_encode_varint(value) for value in range(1 << 14)]


def varint(value: int) -> bytes:
    """Encode a non-negative integer as protobuf does.

    >>> varint(300).hex()
    'ac02'
    """
    return _SMALL_VARINTS[value] if value < 1 << 14 else _encode_varint(value)


def send_receipts(receipts: Iterable[tuple[int, int, int, int]]) -> bytes:
    """Build the SEND_RECEIPT frames of many messages.

    Args:
        receipts: (producer id, sequence id, ledger id, entry id) of each, in SEND order.
    """
    frames = []
    for producer_id, sequence_id, ledger_id, entry_id in receipts:
        message_id = b"\x08" + varint(ledger_id) + b"\x10" + varint(entry_id)
        body = b"\x08%b\x10%b\x1a%b%b" % (
            varint(producer_id),
            varint(sequence_id),
            varint(len(message_id)),
            message_id,
        )
        size = len(body) + 4  # Type, field 7 and a length below 128: the ids take 54 bytes at the most.
        frames.append(_TWO_U32.pack(size + 4, size) + b"\x08\x07\x3a" + varint(len(body)) + body)
    return b"".join(frames)


def message(
    consumer_id: int,
    ledger_id: int,
    entry_id: int,
    entry: bytes,
    *,
    redelivery_count: int = 0,
    ack_set: Sequence[int] = (),
    consumer_epoch: int | None = None,
) -> bytes:
    """Build the MESSAGE frame of one entry.

    Args:
        consumer_id: Which consumer of the connection it is for.
        ledger_id: Its ledger.
        entry_id: Its place there.
        entry: What SEND brought, from the magic number on.
        redelivery_count: How often it was delivered before.
        ack_set: Words of 64 bits, bit 1 for a message of the batch that is not acknowledged; empty for "all of them".
        consumer_epoch: The epoch of the consumer's last redelivery request, where it names one.
    """
    message_id = b"\x08" + varint(ledger_id) + b"\x10" + varint(entry_id)
    body = b"\x08%b\x12%b%b" % (varint(consumer_id), varint(len(message_id)), message_id)
    if redelivery_count:
        body += b"\x18" + varint(redelivery_count)
    for word in ack_set:
        body += b"\x20" + varint(word & 0xFFFF_FFFF_FFFF_FFFF)
    if consumer_epoch is not None:
        body += b"\x28" + varint(consumer_epoch)
    command = b"\x08\x09\x4a" + varint(len(body)) + body
    size = len(command)
    return _TWO_U32.pack(4 + size + len(entry), size) + command + entry
