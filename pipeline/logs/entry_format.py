"""The bytes of an entry: whether it is whole, and its header. For the repair of a log that has lost headers.

    entry:  0x0e01 | CRC32C u32 of all that follows | metadata size u32 | metadata | payload

The header is made as the service makes it when it takes the entry in.
"""

import google_crc32c

from dispatcher.sticky_key import sticky_key_hash
from managed_ledger.headers import NOT_DELAYED, PACK_ROW
from managed_ledger.message_metadata import bytes_of, fields_of, metadata_of

_MAGIC = b"\x0e\x01"
_CHECKSUM = slice(2, 6)
_CHECKED = slice(6, None)

_PRODUCER_NAME, _SEQUENCE_ID, _PUBLISH_TIME, _PARTITION_KEY = 1, 2, 3, 6
_MESSAGES, _KEY_IS_BASE64, _ORDERING_KEY, _DELIVER_AT = 11, 17, 18, 19


class PulsarEntries:
    """See `managed_ledger.repair.survey.EntryFormat`."""

    def header_row(self, entry: bytes) -> bytes | None:
        """See base."""
        if entry[:2] != _MAGIC or google_crc32c.value(entry[_CHECKED]) != int.from_bytes(entry[_CHECKSUM]):
            return None
        try:
            fields = dict(fields_of(metadata_of(entry)))
        except (IndexError, ValueError):
            return None
        producer_name = bytes_of(fields.get(_PRODUCER_NAME))
        return PACK_ROW(
            _number(fields.get(_DELIVER_AT), NOT_DELAYED),
            _number(fields.get(_PUBLISH_TIME), 0),
            sticky_key_hash(
                ordering_key=bytes_of(fields.get(_ORDERING_KEY)),
                partition_key=bytes_of(fields.get(_PARTITION_KEY)),
                partition_key_is_base64=bool(fields.get(_KEY_IS_BASE64)),
                producer_name=None if producer_name is None else producer_name.decode(errors="replace"),
                sequence_id=_number(fields.get(_SEQUENCE_ID), 0),
            ),
            len(entry),
            max(1, _number(fields.get(_MESSAGES), 1)),
            0,
        )


def _number(field: int | bytes | None, default: int) -> int:
    """A number of 64 bits with a sign."""
    if not isinstance(field, int):
        return default
    return field - 2**64 if field >= 2**63 else field
