"""The filter of messages by the properties and the key in their metadata."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from managed_ledger.entries.message_metadata import MAGIC
from managed_ledger.pb.pulsar_metadata_pb2 import MessageMetadata
from pipeline.logs.message_metadata import MetadataFilter

_WORDS = st.sampled_from(["", "a", "b", "ab", "land", "ü", "x" * 200])


def _metadata(**fields: object) -> MessageMetadata:
    return MessageMetadata(producer_name="p-1", sequence_id=300, publish_time=1_700_000_000_000, **fields)


def _entry(metadata: bytes) -> bytes:
    return b"".join((MAGIC, b"sum!", len(metadata).to_bytes(4), metadata, b"the payload"))


@given(st.lists(st.tuples(_WORDS, _WORDS), max_size=4), st.lists(st.tuples(_WORDS, _WORDS), max_size=2), _WORDS)
def test_messages_with_all_properties_are_meant(
    properties: list[tuple[str, str]], wanted: list[tuple[str, str]], key: str
) -> None:
    """Other fields of the metadata do not matter; of a name that comes twice the last value counts."""
    metadata = _metadata(partition_key=key.encode(), deliver_at_time=2**42, event_time=7, compression="LZ4")
    for name, value in properties:
        metadata.properties.add(key=name, value=value)

    found = MetadataFilter(tuple((name.encode(), value.encode()) for name, value in wanted)).takes(
        _entry(metadata.SerializeToString())
    )

    assert found is all(dict(properties).get(name) == value for name, value in wanted)


@pytest.mark.parametrize(
    ("fields", "is_meant"),
    [
        ({"partition_key": b"order-17"}, True),
        ({"partition_key": b"order-18"}, False),
        ({"partition_key": base64.b64encode(b"order-17"), "partition_key_b64_encoded": True}, True),
        ({"partition_key": b"order-18", "ordering_key": b"order-17"}, True),
        ({"partition_key": b"order-17", "ordering_key": b"order-18"}, False),
        ({}, False),
    ],
)
def test_messages_of_a_key_are_meant(fields: dict[str, object], is_meant: bool) -> None:
    """The ordering key if there is one, as Key_Shared has it."""
    entry = _entry(_metadata(**fields).SerializeToString())

    assert MetadataFilter(keys=(b"order-17", b"other")).takes(entry) is is_meant


@given(st.binary(max_size=40), st.integers(0, 60))
def test_what_makes_no_sense_is_not_meant(data: bytes, cut: int) -> None:
    """Nor does it end a job; neither does metadata that is cut off."""
    metadata = _metadata(partition_key=b"k" * 30)
    metadata.properties.add(key="name", value="value" * 9)
    wanted = MetadataFilter(((b"name", b"value" * 9),), (b"k" * 30,))
    whole = metadata.SerializeToString()

    assert wanted.takes(_entry(whole))
    assert not wanted.takes(_entry(whole[: min(cut, len(whole) - 1)]))
    assert not wanted.takes(_entry(data))
    assert not wanted.takes(data)
