"""SEND frames as clients make them: of one message, of some with properties, or of a batch."""

import google_crc32c

from managed_ledger.pb.pulsar_metadata_pb2 import MessageMetadata, SingleMessageMetadata
from postdate.broker.protocol.commands import frame
from postdate.broker.protocol.pb.pulsar_api_pb2 import BaseCommand


def send_frame(
    sequence_id: int, payload: bytes = b"x", *, is_corrupt: bool = False, deliver_at_ms: int | None = None
) -> bytes:
    """A SEND of producer 1."""
    command = BaseCommand(type=BaseCommand.SEND, send={"producer_id": 1, "sequence_id": sequence_id})
    message = MessageMetadata(producer_name="p", sequence_id=sequence_id, publish_time=1)
    if deliver_at_ms is not None:
        message.deliver_at_time = deliver_at_ms
    metadata = message.SerializeToString()
    covered = len(metadata).to_bytes(4, "big") + metadata + payload
    checksum = google_crc32c.value(covered) ^ is_corrupt
    entry = b"\x0e\x01" + checksum.to_bytes(4, "big") + covered
    simple = frame(command)
    total = int.from_bytes(simple[:4], "big") + len(entry)
    return total.to_bytes(4, "big") + simple[4:] + entry


def named_frames(names: list[str], *, deliver_at_ms: int, property_name: str = "name") -> bytes:
    """SENDs of producer 1: one message for each name, which is its property and payload; all of the key k."""
    return b"".join(_named_frame(name, deliver_at_ms, property_name) for name in names)


def _named_frame(name: str, deliver_at_ms: int, property_name: str) -> bytes:
    message = MessageMetadata(
        producer_name="p", sequence_id=0, publish_time=1, partition_key=b"k", deliver_at_time=deliver_at_ms
    )
    message.properties.add(key=property_name, value=name)
    return _framed(message, name.encode(), {"producer_id": 1, "sequence_id": 0})


def batch_frame(names: list[str], *, deliver_at_ms: int) -> bytes:
    """A SEND of producer 1: a batch with a delay, which Pulsar's clients do not send, with a message for each name."""
    payload = b""
    for name in names:
        single = SingleMessageMetadata(partition_key="k", payload_size=len(name))
        single.properties.add(key="name", value=name)
        data = single.SerializeToString()
        payload += len(data).to_bytes(4, "big") + data + name.encode()
    metadata = MessageMetadata(
        producer_name="p", sequence_id=0, publish_time=1, num_messages_in_batch=len(names), partition_key=b"k"
    )
    metadata.deliver_at_time = deliver_at_ms
    return _framed(metadata, payload, {"producer_id": 1, "sequence_id": 0, "num_messages": len(names)})


def _framed(metadata: MessageMetadata, payload: bytes, send: dict[str, int]) -> bytes:
    data = metadata.SerializeToString()
    covered = len(data).to_bytes(4, "big") + data + payload
    entry = b"\x0e\x01" + google_crc32c.value(covered).to_bytes(4, "big") + covered
    simple = frame(BaseCommand(type=BaseCommand.SEND, send=send))
    return (int.from_bytes(simple[:4], "big") + len(entry)).to_bytes(4, "big") + simple[4:] + entry
