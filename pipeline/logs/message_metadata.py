"""The properties and the key of messages, which a job reads from the metadata before the payload.

Two fields of many are wanted of one message of many, so the bytes are walked here and not parsed into objects. A batch
has the properties of its messages in its payload, which is not read; Pulsar's clients send no batch with a delay. Pure.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from dispatcher.sticky_key import sticky_key
from managed_ledger.message_metadata import bytes_of, fields_of

# Numbers of fields of `MessageMetadata` and of `KeyValue`.
_PROPERTIES, _PARTITION_KEY, _KEY_IS_BASE64, _ORDERING_KEY = 4, 6, 17, 18
_NAME, _VALUE = 1, 2


@dataclass(frozen=True, slots=True)
class MetadataFilter:
    """A filter of messages: all of these properties, and one of these keys if there are any."""

    properties: tuple[tuple[bytes, bytes], ...] = ()
    keys: tuple[bytes, ...] = ()

    @property
    def is_trivial(self) -> bool:
        """Whether every message is meant."""
        return not (self.properties or self.keys)

    def takes(self, metadata: bytes) -> bool:
        """Whether a message with this metadata is meant; one whose metadata makes no sense is not."""
        # A search for bytes is a tenth of a walk, and nearly always enough to know.
        if not all(name in metadata and value in metadata for name, value in self.properties):
            return False
        try:
            return self._takes(metadata)
        except (IndexError, ValueError):
            return False

    def _takes(self, metadata: bytes) -> bool:
        properties: dict[bytes, bytes] = {}
        last: dict[int, int | bytes] = {}
        for number, value in fields_of(metadata):
            if number == _PROPERTIES:
                properties.update(_property(value))
            else:
                last[number] = value
        if not all(properties.get(name) == value for name, value in self.properties):
            return False
        if not self.keys:
            return True
        key = sticky_key(
            ordering_key=bytes_of(last.get(_ORDERING_KEY)),
            partition_key=bytes_of(last.get(_PARTITION_KEY)),
            partition_key_is_base64=bool(last.get(_KEY_IS_BASE64)),
            producer_name=None,
            sequence_id=None,
        )
        return key in self.keys


def _property(field: int | bytes) -> Iterator[tuple[bytes, bytes]]:
    parts = dict(fields_of(bytes_of(field) or b""))
    name, value = bytes_of(parts.get(_NAME)), bytes_of(parts.get(_VALUE))
    if name is not None and value is not None:
        yield name, value
