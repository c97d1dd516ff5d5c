"""What RocksDB's write-ahead log holds of snapshots, read without RocksDB: for the part that it drops.

One flipped bit makes RocksDB refuse its log, or drop the whole write that the bit is in and what else is in the same
32 KiB. Most of that is as it was written, and every header and entry has a checksum over its key and its value
(`layout`). So what is whole can be told without trust in anything around it: whatever looks like a key is
followed by what its checksum proves, or it is none.

A log is blocks of 32 KiB, of fragments: a masked CRC32C, the length, the type, and a part of a write; the parts of all
fragments are joined here. In a write, a value of the first family is `01`, key and value, each after its length; one of
another family is `05`, the family's number, and the same; and a deletion is `00` and the key. (RocksDB's
`log_format.h` and `write_batch.cc`.)

Pure functions over bytes. Entries of layout 1 have no checksums and are not found.
"""

import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import google_crc32c

from snapshot_storage.errors import SnapshotCorruptedError
from snapshot_storage.rocksdb.layout import (
    StoredHeader,
    bucket_id_in,
    checked_entry,
    decode_header,
    entry_of,
    indexed_id,
)

_BLOCK_BYTES = 2**15
_FRAGMENT = struct.Struct("<IHB")
_FRAGMENT_TYPES = range(1, 5)
_MASK_DELTA = 0xA282EAD8

# Entries, headers, headers of the index, and deleted headers: of fixed length, by `layout`.
_KEYS = re.compile(
    rb"(?=\x01\x0d(?P<entry>e.{12})|\x01\x09(?P<header>h.{8})|\x05\x01\x11(?P<index>i.{16})|\x00\x09(?P<gone>h.{8}))",
    re.DOTALL,
)


@dataclass(slots=True)
class LoggedSnapshot:
    """What is whole of one snapshot in a log."""

    header: StoredHeader | None = None
    entries: dict[int, bytes] = field(default_factory=dict)
    """Entries by their number, as they are stored."""


def logged_snapshots(logs: Iterable[bytes]) -> dict[int, LoggedSnapshot]:
    """Return what is whole in the logs, by bucket id, without what they delete.

    Args:
        logs: The files' bytes, the oldest first. All that is found is in memory at once.
    """
    found: dict[int, LoggedSnapshot] = {}
    for log in logs:
        content = b"".join(_parts(log))
        for match in _KEYS.finditer(content):
            _take(found, match, content)
    return found


def _take(found: dict[int, LoggedSnapshot], match: re.Match[bytes], content: bytes) -> None:
    kind = match.lastgroup
    assert kind is not None
    key = match[kind]
    if kind == "gone":
        found.pop(bucket_id_in(key), None)
        return
    stored = _value(content, match.end(kind))
    bucket_id = indexed_id(key) if kind == "index" else bucket_id_in(key)
    try:
        if kind == "entry":
            checked_entry(key, stored, has_checksums=True)
            found.setdefault(bucket_id, LoggedSnapshot()).entries[entry_of(key)] = stored
            return
        header = decode_header(bucket_id, stored)
    except SnapshotCorruptedError:
        return
    if header.has_checksums:
        found.setdefault(bucket_id, LoggedSnapshot()).header = header


def _value(content: bytes, start: int) -> bytes:
    """Return the value whose length begins here; the length is a varint."""
    length = shift = 0
    for position in range(start, min(start + 5, len(content))):
        length |= (content[position] & 0x7F) << shift
        shift += 7
        if content[position] < 0x80:
            return content[position + 1 : position + 1 + length]
    return b""


def _parts(log: bytes) -> Iterator[bytes]:
    for start in range(0, len(log), _BLOCK_BYTES):
        block = log[start : start + _BLOCK_BYTES]
        position = 0
        while position + _FRAGMENT.size <= len(block) and any(block[position : position + _FRAGMENT.size]):
            end = _fragment_end(block, position)
            yield block[position + _FRAGMENT.size : end]
            position = end


def _fragment_end(block: bytes, position: int) -> int:
    """Return where a fragment ends, also one that is damaged."""
    whole_end = _end_of_whole(block, position)
    if whole_end is not None:
        return whole_end
    end: int = position + _FRAGMENT.size + _FRAGMENT.unpack_from(block, position)[1]
    if end + _FRAGMENT.size > len(block) >= end or _end_of_whole(block, end) is not None:
        return end
    # Its length is damaged. It ends where the next one begins, or with the block.
    for start in range(position + _FRAGMENT.size, len(block) - _FRAGMENT.size):
        if _end_of_whole(block, start) is not None:
            return start
    return len(block)


def _end_of_whole(block: bytes, position: int) -> int | None:
    """Return where the fragment ends that begins here, None where none does that is whole."""
    start = position + _FRAGMENT.size
    if start > len(block) or block[start - 1] not in _FRAGMENT_TYPES:
        return None
    masked, length, _ = _FRAGMENT.unpack_from(block, position)
    end: int = start + length
    if end > len(block):
        return None
    # The checksum is of the type, too.
    checksum: int = google_crc32c.value(block[start - 1 : end])
    rotated = (checksum >> 15 | checksum << 17) & 0xFFFFFFFF
    return end if masked == (rotated + _MASK_DELTA) & 0xFFFFFFFF else None
