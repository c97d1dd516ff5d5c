"""The bytes of an entry: whether it is whole, and its header. For the repair of a log that has lost headers.

The header is made as the service makes it when it takes the entry in.
"""

import google_crc32c

from dispatcher.sticky_key import sticky_key_hash
from managed_ledger.entries.headers import NOT_DELAYED, PACK_ROW
from managed_ledger.entries.message_metadata import (
    CHECKSUM_END,
    MAGIC,
    MessageMetadataError,
    header_flags,
    metadata_bytes,
    parse_metadata,
)

_CHECKSUM = slice(len(MAGIC), CHECKSUM_END)
_CHECKED = slice(CHECKSUM_END, None)
_INT64_MAX = 2**63 - 1


class PulsarEntries:
    """Entries as Pulsar's clients send them, for a repair of the log."""

    def header_row(self, entry: bytes) -> bytes | None:
        if not entry.startswith(MAGIC):
            return None
        if google_crc32c.value(entry[_CHECKED]) != int.from_bytes(entry[_CHECKSUM]):
            return None
        try:
            metadata = parse_metadata(metadata_bytes(entry))
        except MessageMetadataError:
            return None
        if metadata.publish_time > _INT64_MAX:
            # The service refuses such a message, so it is none of its entries.
            return None
        return PACK_ROW(
            metadata.deliver_at_time if metadata.HasField("deliver_at_time") else NOT_DELAYED,
            metadata.publish_time,
            sticky_key_hash(metadata),
            len(entry),
            max(1, metadata.num_messages_in_batch),
            header_flags(metadata),
        )
