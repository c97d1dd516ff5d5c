"""The filter of messages by the properties and the key in their metadata."""

import base64
import zlib
from itertools import zip_longest

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

    found = MessageFilter(properties=tuple((name.encode(), value.encode()) for name, value in wanted)).chosen(
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

    assert MessageFilter((b"order-17", b"other")).chosen(entry) is is_meant


def _batch(*names: str, is_compressed: bool, keys: tuple[bytes | None, ...] = ()) -> bytes:
    """A batch with a message of each name, and no property of its own, as clients send them."""
    payload = b""
    for name, key in zip_longest(names, keys):
        single = SingleMessageMetadata(payload_size=2, partition_key=key)
        single.properties.add(key="name", value=name)
        data = single.SerializeToString()
        payload += len(data).to_bytes(4) + data + b"ab"
    fields: dict[str, object] = {"num_messages_in_batch": len(names), "partition_key": keys[0] if keys else None}
    if is_compressed:
        fields |= {"compression": "ZLIB", "uncompressed_size": len(payload)}
        payload = zlib.compress(payload)
    return _entry(_metadata(**fields).SerializeToString(), payload)


@pytest.mark.parametrize("is_compressed", [False, True])
def test_the_messages_of_a_batch_are_meant_one_by_one(is_compressed: bool) -> None:
    """Each by its own properties, and by its own key where it has one; also where their bytes cannot be searched."""
    named_a = MessageFilter(properties=((b"name", b"a"),))
    of_k = MessageFilter((b"k",))

    assert named_a.chosen(_batch("a", "b", "a", is_compressed=is_compressed)) == {0, 2}
    assert named_a.chosen(_batch("a", "a", is_compressed=is_compressed)) is True
    assert named_a.chosen(_batch("b", "c", is_compressed=is_compressed)) is False
    assert of_k.chosen(_batch("a", "b", is_compressed=is_compressed, keys=(b"k", None))) is True
    assert of_k.chosen(_batch("a", "b", is_compressed=is_compressed, keys=(b"k", b"other"))) == {0}
    assert of_k.chosen(_batch("a", "b", is_compressed=is_compressed, keys=(b"other", b"k"))) is False


@given(st.binary(max_size=40), st.integers(0, 60))
def test_what_makes_no_sense_is_not_meant(data: bytes, cut: int) -> None:
    """Nor does it end a job; neither does metadata that is cut off."""
    metadata = _metadata(partition_key=b"k" * 30)
    metadata.properties.add(key="name", value="value" * 9)
    wanted = MessageFilter((b"k" * 30,), ((b"name", b"value" * 9),))
    whole = metadata.SerializeToString()

    assert wanted.chosen(_entry(whole))
    assert not wanted.chosen(_entry(whole[: min(cut, len(whole) - 1)]))
    assert not wanted.chosen(_entry(data))
    assert not wanted.chosen(data)
