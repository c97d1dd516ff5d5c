"""Make an entry of the log, or copy one with another delivery time.

    entry:  0x0e01 | crc32c u32 | metadata size u32 | metadata | payload

On the way from producer to consumer nothing opens an entry (`postdate.broker.protocol.frames`). This module serves
requests about single messages; `managed_ledger.entries.messages` opens batches.
"""

from collections.abc import Mapping
from struct import Struct
from typing import Final

import google_crc32c

from managed_ledger.entries.message_metadata import MAGIC, metadata_bytes, metadata_end, parse_metadata
from managed_ledger.pb.pulsar_metadata_pb2 import MessageMetadata

_U32: Final = Struct(">I")


SHIFTED_BY: Final = "postdate.shiftedBy"
"""The property of a copy that says which operation made it, where a repeat of the operation must not move it again."""


def with_delivery_time(
    entry: bytes,
    *,
    deliver_at_ms: int,
    publish_time_ms: int,
    more_properties: Mapping[str, str],
    shifted_by: str | None = None,
) -> bytes | None:
    """Return the entry with another delivery and publish time; payload, key, schema and everything else stay.

    Args:
        entry: The entry as it is stored.
        deliver_at_ms: The new delivery time.
        publish_time_ms: The new publish time.
        more_properties: Properties that it gets if it has none of that name.
        shifted_by: The operation, if it must move no entry twice.

    Returns:
        The entry, None if the operation has made this one.

    Raises:
        MessageMetadataError: It has no metadata that makes sense.
    """
    metadata = parse_metadata(metadata_bytes(entry))
    if shifted_by is not None:
        others = [one for one in metadata.properties if one.key != SHIFTED_BY]
        if any(one.key == SHIFTED_BY and one.value == shifted_by for one in metadata.properties):
            return None
        del metadata.properties[:]
        metadata.properties.extend(others)
        metadata.properties.add(key=SHIFTED_BY, value=shifted_by)
    metadata.deliver_at_time = deliver_at_ms
    metadata.publish_time = publish_time_ms
    present = {one.key for one in metadata.properties}
    for name, value in more_properties.items():
        if name not in present:
            metadata.properties.add(key=name, value=value)
    return entry_of(metadata, entry[metadata_end(entry) :])


def entry_of(metadata: MessageMetadata, payload: bytes) -> bytes:
    """Return the entry of a message, with its checksum."""
    data = metadata.SerializeToString()
    covered = b"".join((_U32.pack(len(data)), data, payload))
    return b"".join((MAGIC, _U32.pack(google_crc32c.value(covered)), covered))
