"""Frames come out of the byte stream as they went in, however it is cut; nonsense only ever raises `ProtocolError`."""

import struct

from hypothesis import given
from hypothesis import strategies as st

from managed_ledger.pb.pulsar_metadata_pb2 import MessageMetadata
from postdate.broker.protocol import commands
from postdate.broker.protocol.errors import ProtocolError
from postdate.broker.protocol.frames import CorruptSend, Frame, FrameSplitter, Send
from postdate.broker.protocol.pb.pulsar_api_pb2 import BaseCommand
from tests.helpers.parsed_frames import frames_in
from tests.helpers.wire_frames import entry_of, framed

uint64 = st.integers(0, 2**64 - 1)
# A few letters of every length in UTF-8: the lengths matter here, without the cost of all of Unicode.
text = st.text(alphabet="aZ0é☃🦀", max_size=8)
position = st.one_of(st.integers(0, 300), uint64)


@st.composite
def metadatas(draw: st.DrawFn) -> MessageMetadata:
    metadata = MessageMetadata(
        producer_name=draw(text),
        sequence_id=draw(position),
        publish_time=draw(st.integers(0, 2**63 - 1)),
    )
    if draw(st.booleans()):
        metadata.partition_key = draw(text).encode()
    if draw(st.booleans()):
        metadata.deliver_at_time = draw(st.integers(-(2**63), 2**63 - 1))
    for key, value in draw(st.dictionaries(text, text, max_size=2)).items():
        metadata.properties.add(key=key, value=value)
    return metadata


@st.composite
def sends(draw: st.DrawFn) -> tuple[bytes, Frame]:
    """A SEND's bytes, of the usual and of unusual shapes, and what it must become."""
    command = BaseCommand(type=BaseCommand.SEND)
    command.send.producer_id = draw(position)
    command.send.sequence_id = draw(position)
    if draw(st.booleans()):
        command.send.num_messages = draw(st.integers(1, 2**31 - 1))
    if draw(st.booleans()):
        command.send.highest_sequence_id = draw(position)
    metadata = draw(metadatas())
    entry = entry_of(metadata.SerializeToString(), draw(st.binary(max_size=40)))
    send = command.send
    is_damaged = draw(st.integers(0, 9)) == 0
    if is_damaged:
        entry = entry[:-1] + bytes([entry[-1] ^ 1])
        return framed(command.SerializeToString(), entry), CorruptSend(send.producer_id, send.sequence_id)
    return framed(command.SerializeToString(), entry), Send(
        send.producer_id, send.sequence_id, send.num_messages, metadata, entry, send.highest_sequence_id
    )


@st.composite
def acks(draw: st.DrawFn) -> tuple[bytes, Frame]:
    command = BaseCommand(type=BaseCommand.ACK)
    command.ack.consumer_id = draw(position)
    command.ack.ack_type = draw(st.sampled_from([0, 1]))
    for ledger_id, entry_id in draw(st.lists(st.tuples(position, position), max_size=5)):
        command.ack.message_id.add(ledgerId=ledger_id, entryId=entry_id)
    return commands.frame(command), command


def cut(stream: bytes, sizes: list[int]) -> list[bytes]:
    chunks, start = [], 0
    for size in sizes:
        chunks.append(stream[start : start + size])
        start += size
    return [*chunks, stream[start:]]


@given(st.lists(st.one_of(sends(), acks()), max_size=6), st.lists(st.integers(0, 90), max_size=12))
def test_chunks_make_no_difference(made: list[tuple[bytes, Frame]], sizes: list[int]) -> None:
    """Any cutting of the stream gives the frames that were sent."""
    splitter = FrameSplitter()

    frames = [frame for chunk in cut(b"".join(data for data, _ in made), sizes) for frame in frames_in(chunk, splitter)]

    assert frames == [frame for _, frame in made]


def feed_all(splitter: FrameSplitter, chunks: list[bytes]) -> str | None:
    """Feed chunks; return why they were refused, None if they were not."""
    try:
        for chunk in chunks:
            frames_in(chunk, splitter)
    except ProtocolError as error:
        return str(error)
    return None


@given(st.binary(max_size=60), st.binary(max_size=60))
def test_well_framed_noise_raises_nothing_else(command: bytes, rest: bytes) -> None:
    """Nor from noise that has the lengths of a frame, so that the parsers see it."""
    frame = struct.pack(">II", 4 + len(command) + len(rest), len(command)) + command + rest

    reason = feed_all(FrameSplitter(1024), [frame])

    assert reason is None or reason


@given(sends(), st.data())
def test_a_flipped_bit_raises_nothing_else(made: tuple[bytes, Frame], data: st.DataObject) -> None:
    """A damaged SEND is refused, reported as corrupt, or waits; its payload never comes through changed."""
    stream, frame = made
    at = data.draw(st.integers(0, len(stream) * 8 - 1))
    damaged = bytearray(stream)
    damaged[at // 8] ^= 1 << at % 8

    try:
        frames = frames_in(bytes(damaged))
    except ProtocolError:
        return

    payloads = [one.entry for one in frames if isinstance(one, Send)]
    assert payloads in ([], [frame.entry] if isinstance(frame, Send) else []) or isinstance(frame, CorruptSend)


@given(st.binary(max_size=30), st.binary(max_size=10))
def test_metadata_noise_raises_nothing_else(metadata: bytes, payload: bytes) -> None:
    """A SEND that comes through has metadata that every consumer's parser takes."""
    command = BaseCommand(type=BaseCommand.SEND)
    command.send.producer_id = command.send.sequence_id = 0
    try:
        frames = frames_in(framed(command.SerializeToString(), entry_of(metadata, payload)))
    except ProtocolError:
        return

    assert all(isinstance(frame, Send) and frame.metadata.IsInitialized() for frame in frames)
