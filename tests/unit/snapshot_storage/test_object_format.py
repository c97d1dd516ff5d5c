"""A snapshot as one run of bytes: every bit of it counts."""

import json
import struct

import google_crc32c
import numpy as np
import pytest

from snapshot_storage.errors import SnapshotCorruptedError, SnapshotVersionError
from snapshot_storage.objects.format import (
    FRONT_BYTES,
    ObjectHead,
    SnapshotNames,
    checked_entries,
    decode_object,
    decode_object_head,
    decode_object_info,
    encode_object,
    encode_object_head,
    object_extent,
    table_of,
)
from snapshot_storage.storage import BucketSnapshotInfo

_NAMES = SnapshotNames("#pulsar.internal.delayed.bucket_1_5", "persistent://a/ä/\x00☃", "c / \n'\"")


def _object(metadata: bytes = b"metadata", segments: tuple[bytes, ...] = (b"one", b"", b"three")) -> bytes:
    return encode_object(metadata, segments, **_NAMES._asdict())


def _head(data: bytes) -> ObjectHead:
    return decode_object_head(data, object_bytes=len(data), bucket_id=7)


def test_the_bytes_are_what_the_module_says() -> None:
    """Built by hand: other programs, and later versions, meet them."""
    names = json.dumps(_NAMES._asdict()).encode()
    front = b"POSTDATE" + struct.pack(">HHIIQ", 1, 0, len(names), 2, 5) + names
    table = struct.pack(">IIII", 2, google_crc32c.value(b"me"), 3, google_crc32c.value(b"one"))
    by_hand = b"".join(
        [
            front,
            struct.pack(">I", google_crc32c.value(front)),
            table,
            struct.pack(">I", google_crc32c.value(table)),
            b"me",
            b"one",
        ]
    )

    assert _object(b"me", (b"one",)) == by_hand


@pytest.mark.parametrize("segments", [(), (b"",), (b"one",), tuple(b"%d" % k * 50 for k in range(2_000))])
@pytest.mark.parametrize("metadata", [b"", b"m" * 100_000])
def test_an_object_is_read_as_it_was_written(metadata: bytes, segments: tuple[bytes, ...]) -> None:
    """Whole, or from its beginning."""
    data = _object(metadata, segments)

    assert decode_object(data) == (_NAMES, metadata, list(segments))
    extent = object_extent(data[:FRONT_BYTES], object_bytes=len(data))
    length_bytes = len(metadata) + sum(map(len, segments))
    info = decode_object_info(data[: extent.names_end], object_bytes=len(data), bucket_id=7)
    assert info == BucketSnapshotInfo(7, *_NAMES, len(segments), length_bytes)
    head = decode_object_head(data[: extent.head_end], object_bytes=len(data), bucket_id=7)
    assert head.info(7) == info
    assert head.starts()[-1] == len(data) == extent.object_end


def test_a_table_may_come_piece_by_piece() -> None:
    """Joined by numpy, it gives the same bytes."""
    table = np.concatenate([table_of([b"metadata"]), table_of([b"one", b""]), table_of([]), table_of([b"three"])])

    assert encode_object_head(_NAMES, table) + b"metadataonethree" == _object()


def test_any_flipped_bit_is_corruption() -> None:
    """Of every byte of the object, all eight; those of an entry name it."""
    data = _object()
    starts = _head(data).starts().tolist()
    for offset in range(len(data)):
        entry = max((k for k, start in enumerate(starts) if start <= offset), default=None)
        for bit in range(8):
            flipped = bytearray(data)
            flipped[offset] ^= 1 << bit

            with pytest.raises(SnapshotCorruptedError, match="bucket 7") as caught:
                decode_object(bytes(flipped), bucket_id=7)

            assert caught.value.bucket_id == 7
            assert caught.value.entry == entry


def test_an_object_that_is_cut_or_grew_is_corruption() -> None:
    """At every length, and no part of it is returned."""
    data = _object()

    for length in range(len(data)):
        with pytest.raises(SnapshotCorruptedError):
            decode_object(data[:length])
    with pytest.raises(SnapshotCorruptedError):
        decode_object(data + b"\0")


def test_entries_are_cut_from_any_run_of_bytes() -> None:
    """From each entry on, at each length: those that are complete."""
    entries = [b"metadata", b"one", b"", b"three"]
    data = _object()
    head = _head(data)
    starts = head.starts().tolist()

    for first, start in enumerate(starts[:-1]):
        for end in range(start, len(data) + 1):
            complete = sum(limit <= end for limit in starts[first + 1 :])
            assert checked_entries(head, first, data[start:end]) == entries[first : first + complete]


def test_a_newer_version_is_told_from_damage() -> None:
    """Only if its checksum is right: a flipped bit of the version is damage."""
    head = bytearray(encode_object_head(_NAMES, table_of([b"m"])))
    head[9] = 2
    with pytest.raises(SnapshotCorruptedError):
        decode_object(bytes(head) + b"m")

    names_end = object_extent(bytes(head), object_bytes=len(head) + 1).names_end
    head[names_end - 4 : names_end] = struct.pack(">I", google_crc32c.value(bytes(head[: names_end - 4])))

    with pytest.raises(SnapshotVersionError, match="layout version 2, and this program reads 1"):
        decode_object(bytes(head) + b"m")


def test_an_entry_of_four_gib_is_refused() -> None:
    """Its length would not fit, and a wrong one must never be written."""

    class _Huge(bytes):
        def __len__(self) -> int:
            return 2**32

    with pytest.raises(ValueError, match="smaller than 4 GiB"):
        table_of([_Huge()])
