"""One parser of metadata: the same bytes mean the same to the broker, to a repair of the log and to a search.

A producer's frame goes through the broker into a log in memory, and the entry that the log got goes through what the
bulk jobs do with it. The oracle is what the test has put into the metadata.
"""

import base64
import struct
import zlib
from collections.abc import Mapping
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import google_crc32c
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.slots import sticky_hash
from managed_ledger.entries.headers import NO_CHUNK, NOT_DELAYED, PACK_ROW
from managed_ledger.entries.messages import MessageFilter, message_of
from managed_ledger.pb.pulsar_metadata_pb2 import MessageMetadata
from postdate.broker.clients.publishing import Publisher
from postdate.broker.protocol.frames import Send
from postdate.broker.protocol.pb.pulsar_api_pb2 import BaseCommand
from postdate.broker.topics.publishing_buffer import PublishBuffer
from postdate.index.entry_format import PulsarEntries
from tests.helpers.parsed_frames import frames_in

INT64 = st.integers(0, 2**63 - 1)
FIELDS = st.fixed_dictionaries(
    {"producer_name": st.text(max_size=20), "sequence_id": st.integers(0, 2**64 - 1), "publish_time": INT64},
    optional={
        "partition_key": st.binary(max_size=20) | st.binary(max_size=20).map(base64.b64encode),
        "partition_key_b64_encoded": st.booleans(),
        "ordering_key": st.binary(max_size=20),
        "deliver_at_time": st.integers(-(2**63), 2**63 - 1).filter(lambda ms: ms != NOT_DELAYED),
        "num_messages_in_batch": st.integers(-1, 1_000),
        "event_time": INT64,
        "num_chunks_from_msg": st.integers(-1, 3),
        "chunk_id": st.integers(0, 3),
    },
)
PROPERTIES = st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=3)


class RecordingLedger:
    """Keeps the header that an entry would have in the log."""

    def __init__(self) -> None:
        self.rows: list[bytes] = []
        self.entries: list[bytes] = []

    def append_nowait(self, payload: bytes, **header: Any) -> tuple[int, int]:
        self.rows.append(
            PACK_ROW(
                header["deliver_at_ms"],
                header["publish_time_ms"],
                header["sticky_hash"],
                len(payload),
                header["message_count"],
                header["flags"],
            )
        )
        self.entries.append(payload)
        return 1, len(self.entries) - 1

    def committed(self) -> "Future[None]":
        return Future()


def published(metadata: bytes) -> tuple[bytes, bytes]:
    """Let the broker take a message in, and return its entry and its header."""
    covered = struct.pack(">I", len(metadata)) + metadata + b"the payload"
    entry = b"\x0e\x01" + struct.pack(">I", google_crc32c.value(covered)) + covered
    command = BaseCommand(type=BaseCommand.SEND)
    command.send.producer_id, command.send.sequence_id, command.send.num_messages = 1, 2, 1
    data = command.SerializeToString()
    (send,) = frames_in(struct.pack(">II", 4 + len(data) + len(entry), len(data)) + data + entry)
    assert isinstance(send, Send)
    ledger = RecordingLedger()
    topic: Any = SimpleNamespace(
        ledger=ledger, delay_ms_max=0, entries_in_total=0, messages_in_total=0, bytes_in_total=0
    )
    link: Any = None
    refusals: Any = None
    publisher = Publisher(link, pending_bytes_max=1, buffer=PublishBuffer(1), refusal_log=refusals)
    publisher.append(topic, send)
    return ledger.entries[0], ledger.rows[0]


def key_put_in(fields: dict[str, Any]) -> bytes | None:
    """Return the key by Pulsar's rules, from what was put in."""
    if "ordering_key" in fields:
        return bytes(fields["ordering_key"])
    key = fields.get("partition_key")
    if key is None or not fields.get("partition_key_b64_encoded"):
        return key
    try:
        return base64.b64decode(key, validate=True)
    except ValueError:
        return bytes(key)


def _chunk_flags(fields: Mapping[str, Any]) -> int:
    """Return the flags of a chunk whose message has no id of its own: 4, 8 for the last one, and a hash above."""
    is_last = fields.get("chunk_id", 0) >= fields["num_chunks_from_msg"] - 1
    message = zlib.crc32(f"{fields['producer_name']}-{fields['sequence_id']}".encode()) % 2**16
    return 4 + 8 * is_last + message * 2**16


@given(FIELDS, PROPERTIES)
def test_the_same_bytes_mean_the_same_to_the_broker_and_to_the_bulk_jobs(
    fields: dict[str, Any], properties: dict[str, str]
) -> None:
    """Header, key and properties; and both are what the producer has put in."""
    message = MessageMetadata(**fields)
    for name, value in properties.items():
        message.properties.add(key=name, value=value)

    entry, header = published(message.SerializeToString())

    assert PulsarEntries().header_row(entry) == header
    key = key_put_in(fields)
    hashed = f"{fields['producer_name']}-{fields['sequence_id']}".encode() if key is None else key
    assert header == PACK_ROW(
        fields.get("deliver_at_time", NOT_DELAYED),
        fields["publish_time"],
        sticky_hash(hashed),
        len(entry),
        max(1, fields.get("num_messages_in_batch", 1)),
        _chunk_flags(fields) if fields.get("num_chunks_from_msg", 0) > 1 else NO_CHUNK,
    )
    stored = message_of(entry)
    assert (stored.key, stored.properties) == (key, properties)
    wanted = tuple((name.encode(), value.encode()) for name, value in properties.items())
    assert MessageFilter(properties=wanted).matches(entry) is True
    assert MessageFilter(() if key is None else (key,), wanted).matches(entry) is True
    assert not MessageFilter(properties=((b"no such name at all", b"value"),)).matches(entry)
    assert not MessageFilter((b"no such key at all, longer than any",)).matches(entry)


@given(st.binary(max_size=60))
def test_bytes_that_are_no_metadata_stop_no_bulk_job(data: bytes) -> None:
    """The broker refuses them at the frame; a log that holds them all the same has no header for them."""
    covered = struct.pack(">I", len(data)) + data
    entry = b"\x0e\x01" + struct.pack(">I", google_crc32c.value(covered)) + covered

    row = PulsarEntries().header_row(entry)

    assert row is None or len(row) == len(PACK_ROW(0, 0, 0, 0, 1, 0))
    assert not MessageFilter(properties=((b"n" * 61, b""),)).matches(entry)
