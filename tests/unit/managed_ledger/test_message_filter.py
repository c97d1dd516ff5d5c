"""The filter of messages by the properties and the key in their metadata."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from managed_ledger.entries.message_metadata import MAGIC
from managed_ledger.entries.messages import MessageFilter
from managed_ledger.pb.pulsar_metadata_pb2 import MessageMetadata, SingleMessageMetadata

_WORDS = st.sampled_from(["", "a", "b", "ab", "land", "ü", "x" * 200])


def _metadata(**fields: object) -> MessageMetadata:
    return MessageMetadata(producer_name="p-1", sequence_id=300, publish_time=1_700_000_000_000, **fields)


def _entry(metadata: bytes, payload: bytes = b"the payload") -> bytes:
    return b"".join((MAGIC, b"sum!", len(metadata).to_bytes(4), metadata, payload))


@given(st.lists(st.tuples(_WORDS, _WORDS), max_size=4), st.lists(st.tuples(_WORDS, _WORDS), max_size=2), _WORDS)
def test_messages_with_all_properties_are_meant(
    properties: list[tuple[str, str]], wanted: list[tuple[str, str]], key: str
) -> None:
    """Other fields of the metadata do not matter; of a name that comes twice the last value counts."""
    metadata = _metadata(partition_key=key.encode(), deliver_at_time=2**42, event_time=7, compression="LZ4")
    for name, value in properties:
        metadata.properties.add(key=name, value=value)

    found = MessageFilter(properties=tuple((name.encode(), value.encode()) for name, value in wanted)).matches(
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

    assert MessageFilter((b"order-17", b"other")).matches(entry) is is_meant


def test_a_batch_is_whole() -> None:
    """It is meant by what its own metadata says: the key, which Key_Shared orders by, and no property of a message."""
    single = SingleMessageMetadata(payload_size=2, partition_key=b"other")
    single.properties.add(key="name", value="a")
    data = single.SerializeToString()
    entry = _entry(
        _metadata(num_messages_in_batch=1, partition_key=b"k").SerializeToString(), len(data).to_bytes(4) + data + b"ab"
    )

    assert MessageFilter((b"k",)).matches(entry)
    assert not MessageFilter((b"other",)).matches(entry)
    assert not MessageFilter(properties=((b"name", b"a"),)).matches(entry)


@given(st.binary(max_size=40), st.integers(0, 60))
def test_what_makes_no_sense_is_not_meant(data: bytes, cut: int) -> None:
    """Nor does it end a job; neither does metadata that is cut off."""
    metadata = _metadata(partition_key=b"k" * 30)
    metadata.properties.add(key="name", value="value" * 9)
    wanted = MessageFilter((b"k" * 30,), ((b"name", b"value" * 9),))
    whole = metadata.SerializeToString()

    assert wanted.matches(_entry(whole))
    assert not wanted.matches(_entry(whole[: min(cut, len(whole) - 1)]))
    assert not wanted.matches(_entry(data))
    assert not wanted.matches(data)
