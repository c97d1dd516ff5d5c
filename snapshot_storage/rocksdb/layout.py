"""The layout of a RocksDB folder of snapshots: keys and values, as pure functions over bytes.

    format              the version of this layout
    next                the next bucket id, as 8 bytes
    h id                a snapshot's header, JSON and its CRC32C: it exists when the key does
    e id entry          an entry, as it was given, and its CRC32C
    i topic cursor id   that the header of this id is of the topic and cursor with these hashes, 4 bytes each
    w id                a snapshot is being written piece by piece: its entries so far are not a whole snapshot

Ids are 8 bytes and entries 4, big endian, so that one range scan reads a bucket in order, and another one lists the
snapshots of a topic or a cursor without a look at those of others. A CRC32C covers the key with the value, so that a
value under another's key is found out too. RocksDB checks a checksum for each block it reads and each record of its
log; ours reaches from the caller that gave the bytes to the one that gets them, over memory, compression and cache.

A folder of another layout is not read: it is put aside as a damaged one is, and the index is built again.
"""

import json
import struct
import zlib
from collections.abc import Iterator, Sequence

import google_crc32c

from snapshot_storage.errors import SnapshotCorruptedError
from snapshot_storage.storage import BucketSnapshotInfo

FORMAT_KEY = b"format"
FORMAT = b"postdate snapshots 4"
NEXT_ID_KEY = b"next"
HEADERS = b"h", b"i"
"""Between these keys all headers are, the second one excluded."""
UNFINISHED = b"w", b"x"
BUCKET_ID_RANGE = range(2**63)
ENTRY_MAX = 2**32 - 1

_CHECKSUM_BYTES = 4
_INDEX_KEY_BYTES = 1 + 4 + 4 + 8


def header_key(bucket_id: int) -> bytes:
    """Return the key of a snapshot's header."""
    return b"h" + bucket_id.to_bytes(8)


def index_range(topic_name: str | None, cursor_name: str | None) -> tuple[bytes, bytes]:
    """Return the keys of the index between which those of a topic or a cursor are, the second one excluded.

    Some others' may be there, too.
    """
    if topic_name is None:
        return b"i", b"j"
    begin = b"i" + _hash(topic_name) + (b"" if cursor_name is None else _hash(cursor_name))
    return begin, begin + b"\xff" * (_INDEX_KEY_BYTES + 1 - len(begin))


def index_key(info: BucketSnapshotInfo) -> bytes:
    """Return the key of a snapshot in the index."""
    return b"i" + _hash(info.topic_name) + _hash(info.cursor_name) + info.bucket_id.to_bytes(8)


def indexed_id(key: bytes) -> int:
    """Return the bucket id in a key of the index."""
    return int.from_bytes(key[_INDEX_KEY_BYTES - 8 :])


def unfinished_key(bucket_id: int) -> bytes:
    """Return the key that marks a snapshot as being written."""
    return b"w" + bucket_id.to_bytes(8)


def entry_key(bucket_id: int, entry: int) -> bytes:
    """Return the key of an entry."""
    return struct.pack(">cQI", b"e", bucket_id, entry)


def entry_keys(bucket_id: int, first_entry: int, last_entry: int) -> Iterator[bytes]:
    """Return the keys of consecutive entries."""
    of_bucket = b"e" + bucket_id.to_bytes(8)
    return (of_bucket + entry.to_bytes(4) for entry in range(first_entry, last_entry + 1))


def entry_range(bucket_id: int, first_entry: int, last_entry: int) -> tuple[bytes, bytes]:
    """Return the first key of consecutive entries, and the key behind the last one."""
    of_bucket = b"e" + bucket_id.to_bytes(8)
    return of_bucket + first_entry.to_bytes(4), of_bucket + last_entry.to_bytes(4) + b"\0"


def bucket_id_in(key: bytes) -> int:
    """Return the bucket id in a key that begins with one letter."""
    return int.from_bytes(key[1:9])


def with_checksum(key: bytes, value: bytes) -> bytes:
    """Return the bytes that are stored under the key for a value."""
    return b"".join((value, _checksum(key, value).to_bytes(_CHECKSUM_BYTES)))


def checked_entries(rows: Sequence[tuple[bytes, bytes]]) -> list[bytes]:
    """Return the entries that are stored in these rows.

    PERFORMANCE: segments may be few rows each, and many, so no function is called for each.

    Raises:
        SnapshotCorruptedError: The bytes of a row are not those that were stored under its key.
    """
    entries: list[bytes] = []
    for key, stored in rows:
        entry = stored[:-_CHECKSUM_BYTES]
        if google_crc32c.value(key + entry) != int.from_bytes(stored[-_CHECKSUM_BYTES:]):
            _, bucket_id, number = struct.unpack(">cQI", key)
            raise SnapshotCorruptedError("its checksum is wrong", bucket_id=bucket_id, entry=number)
        entries.append(entry)
    return entries


def encode_header(info: BucketSnapshotInfo) -> bytes:
    """Return the value of a header."""
    names = {
        "bucket_key": info.bucket_key,
        "topic_name": info.topic_name,
        "cursor_name": info.cursor_name,
        "segment_count": info.segment_count,
        "length_bytes": info.length_bytes,
    }
    return with_checksum(header_key(info.bucket_id), json.dumps(names).encode())


def decode_header(bucket_id: int, stored: bytes) -> BucketSnapshotInfo:
    """Return what a header says.

    Raises:
        SnapshotCorruptedError: The bytes are not those that were written for this id.
    """
    header = _without_checksum(header_key(bucket_id), stored)
    if header is None:
        raise SnapshotCorruptedError("the checksum of its header is wrong", bucket_id=bucket_id)
    try:
        return BucketSnapshotInfo(bucket_id=bucket_id, **json.loads(header))
    except (TypeError, ValueError) as error:
        raise SnapshotCorruptedError(f"its header is not readable: {error}", bucket_id=bucket_id) from error


def _hash(name: str) -> bytes:
    # Names may hold characters that are no text to other programs; any bytes do, as long as they are the same every
    # time.
    return zlib.crc32(name.encode("utf-8", "surrogatepass")).to_bytes(4)


def _checksum(key: bytes, value: bytes) -> int:
    # To put the two together takes less than another call.
    checksum: int = google_crc32c.value(key + value)
    return checksum


def _without_checksum(key: bytes, stored: bytes) -> bytes | None:
    value = stored[:-_CHECKSUM_BYTES]
    return value if int.from_bytes(stored[-_CHECKSUM_BYTES:]) == _checksum(key, value) else None
