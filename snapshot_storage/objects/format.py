"""A snapshot as one run of bytes: for object storage, and for what one job hands to the next.

    front   magic 8s | version u16 | zero u16 | names length u32 | entry count u32 | length of all entries u64
    names   JSON: bucket_key, topic_name, cursor_name
            CRC32C of all of the above
    table   entry count times: length u32 | CRC32C u32
            CRC32C of the table
    entries metadata, then the segments

Numbers are big endian. All that is needed to find and check any entry comes first, so that one read of the
beginning gives names, metadata and the first segments, and one read of a range gives any other segment. Each part is
checked by itself, so that a list needs only the names. Front, names and their checksum stay as they are in
every version: a reader can tell a newer version from damage.

Pure functions over bytes. The bucket id is not in the bytes: a snapshot that is copied to another storage gets another
one. Compression is left out: it would have to be per entry, and a read of one segment costs its call, not its bytes.
"""

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from snapshot_storage.errors import SnapshotCorruptedError, SnapshotVersionError
from snapshot_storage.storage import METADATA_ENTRY, BucketSnapshotInfo

VERSION: Final = 1

_FRONT: Final = struct.Struct(">8sHHIIQ")
_MAGIC: Final = b"POSTDATE"
_CHECKSUM: Final = struct.Struct(">I")
_ROW: Final = np.dtype([("length", ">u4"), ("checksum", ">u4")])
_UINT32_MAX: Final = 2**32 - 1

FRONT_BYTES: Final = _FRONT.size
"""With this much of an object, `object_extent` says how much more its head has."""


class SnapshotNames(NamedTuple):
    """The owner of the snapshot."""

    bucket_key: str
    topic_name: str
    cursor_name: str


class ObjectExtent(NamedTuple):
    """Where the parts of an object end, as its front says; not checked yet."""

    names_end: int
    head_end: int
    object_end: int


@dataclass(frozen=True, slots=True, eq=False)
class ObjectHead:
    """The part before the entries, checked."""

    names: SnapshotNames
    table: NDArray[np.void]
    """Length and checksum of each entry, 8 bytes an entry."""
    entries_start: int

    @property
    def segment_count(self) -> int:
        """How many entries there are besides the metadata."""
        return len(self.table) - 1

    def starts(self) -> NDArray[np.int64]:
        """Return where each entry starts in the object, and at last where the object ends."""
        starts = np.empty(len(self.table) + 1, np.int64)
        starts[0] = self.entries_start
        np.cumsum(self.table["length"], dtype=np.int64, out=starts[1:])
        starts[1:] += self.entries_start
        return starts

    def info(self, bucket_id: int) -> BucketSnapshotInfo:
        """Return what a storage knows of the snapshot."""
        length_bytes = int(self.table["length"].sum(dtype=np.int64))
        return BucketSnapshotInfo(bucket_id, *self.names, self.segment_count, length_bytes)


class DecodedObject(NamedTuple):
    """A whole object."""

    names: SnapshotNames
    metadata: bytes
    segments: list[bytes]


def table_of(entries: Sequence[bytes]) -> NDArray[np.void]:
    """Return length and checksum of each entry.

    Raises:
        ValueError: An entry is 4 GiB or larger.
    """
    if any(len(entry) > _UINT32_MAX for entry in entries):
        raise ValueError("an entry of a snapshot must be smaller than 4 GiB")
    table = np.empty(len(entries), _ROW)
    table["length"] = [len(entry) for entry in entries]
    table["checksum"] = [google_crc32c.value(entry) for entry in entries]
    return table


def encode_object_head(names: SnapshotNames, table: NDArray[np.void]) -> bytes:
    """Return the head of an object, before the entries.

    Args:
        names: The owner of the snapshot.
        table: Of all entries, from `table_of`; entry 0 is the metadata.
    """
    assert len(table) > METADATA_ENTRY
    names_json = json.dumps(names._asdict()).encode()
    length_bytes = int(table["length"].sum(dtype=np.int64))
    front = _FRONT.pack(_MAGIC, VERSION, 0, len(names_json), len(table), length_bytes) + names_json
    # Arrays that numpy has joined have the byte order of the machine.
    rows = table.astype(_ROW, copy=False).tobytes()
    return b"".join((front, _checksum(front), rows, _checksum(rows)))


def encode_object(
    metadata: bytes, segments: Sequence[bytes], *, bucket_key: str, topic_name: str, cursor_name: str
) -> bytes:
    """Return a snapshot as one run of bytes.

    >>> data = encode_object(b"m", [b"one", b"two"], bucket_key="k", topic_name="t", cursor_name="c")
    >>> decode_object(data)
    DecodedObject(names=SnapshotNames(bucket_key='k', topic_name='t', cursor_name='c'),
                  metadata=b'm', segments=[b'one', b'two'])

    Raises:
        ValueError: An entry is 4 GiB or larger.
    """
    entries = (metadata, *segments)
    head = encode_object_head(SnapshotNames(bucket_key, topic_name, cursor_name), table_of(entries))
    return b"".join((head, *entries))


def decode_object(data: bytes, *, bucket_id: int | None = None) -> DecodedObject:
    """Return the contents of an object, all of it checked.

    Args:
        data: The object.
        bucket_id: Its id, for the error.

    Raises:
        SnapshotCorruptedError: A bit is not as it was written, or bytes are missing.
        SnapshotVersionError: A newer program wrote it.
    """
    head = decode_object_head(data, object_bytes=len(data), bucket_id=bucket_id)
    metadata, *segments = checked_entries(head, METADATA_ENTRY, data[head.entries_start :], bucket_id=bucket_id)
    return DecodedObject(head.names, metadata, segments)


def object_extent(data: bytes, *, object_bytes: int, bucket_id: int | None = None) -> ObjectExtent:
    """Return where the parts end, from the first `FRONT_BYTES` of an object.

    Args:
        data: The beginning of the object.
        object_bytes: The length of all of it.
        bucket_id: Its id, for the error.

    Raises:
        SnapshotCorruptedError: The bytes are no such object, or its length is another.
    """
    if len(data) < FRONT_BYTES:
        raise SnapshotCorruptedError(f"it has {len(data)} bytes, which is no header", bucket_id=bucket_id)
    magic, _, _, names_bytes, entry_count, length_bytes = _FRONT.unpack_from(data)
    if magic != _MAGIC:
        raise SnapshotCorruptedError("it does not begin as a snapshot", bucket_id=bucket_id)
    names_end = FRONT_BYTES + names_bytes + _CHECKSUM.size
    head_end = names_end + entry_count * _ROW.itemsize + _CHECKSUM.size
    extent = ObjectExtent(names_end, head_end, head_end + length_bytes)
    if not entry_count or extent.object_end != object_bytes:
        reason = f"its header speaks of {entry_count} entries and {extent.object_end} bytes, there are {object_bytes}"
        raise SnapshotCorruptedError(reason, bucket_id=bucket_id)
    return extent


def decode_object_info(data: bytes, *, object_bytes: int, bucket_id: int) -> BucketSnapshotInfo:
    """Return whose snapshot it is and how large, from the object's beginning up to `names_end`.

    Raises:
        SnapshotCorruptedError: A bit is not as it was written, or bytes are missing.
        SnapshotVersionError: A newer program wrote it.
    """
    extent = object_extent(data, object_bytes=object_bytes, bucket_id=bucket_id)
    names = _decode_names(data[: extent.names_end], bucket_id)
    *_, entry_count, length_bytes = _FRONT.unpack_from(data)
    return BucketSnapshotInfo(bucket_id, *names, entry_count - 1, length_bytes)


def decode_object_head(data: bytes, *, object_bytes: int, bucket_id: int | None = None) -> ObjectHead:
    """Return the head, from the object's beginning up to `head_end`.

    Raises:
        SnapshotCorruptedError: A bit is not as it was written, or bytes are missing.
        SnapshotVersionError: A newer program wrote it.
    """
    extent = object_extent(data, object_bytes=object_bytes, bucket_id=bucket_id)
    names = _decode_names(data[: extent.names_end], bucket_id)
    rows = _checked(data[extent.names_end : extent.head_end], "table of entries", bucket_id)
    table = np.frombuffer(rows, _ROW)
    if int(table["length"].sum(dtype=np.int64)) != extent.object_end - extent.head_end:
        raise SnapshotCorruptedError("its entries are not as long as its header says", bucket_id=bucket_id)
    return ObjectHead(names, table, extent.head_end)


def checked_entries(head: ObjectHead, first_entry: int, data: bytes, *, bucket_id: int | None = None) -> list[bytes]:
    """Cut a run of bytes into entries and check them; an incomplete one at the end is left out.

    Args:
        head: The object's head.
        first_entry: The entry that the bytes begin with.
        data: Bytes of the object from the start of that entry.
        bucket_id: The object's id, for the error.

    Raises:
        SnapshotCorruptedError: The bytes of an entry are not those that were written.
    """
    ends = np.cumsum(head.table["length"][first_entry:], dtype=np.int64)
    complete = int(ends.searchsorted(len(data), "right"))
    checksums = head.table["checksum"][first_entry : first_entry + complete].tolist()
    entries, start = [], 0
    for entry, (end, checksum) in enumerate(zip(ends[:complete].tolist(), checksums, strict=True), first_entry):
        payload = data[start:end]
        if google_crc32c.value(payload) != checksum:
            raise SnapshotCorruptedError("its checksum is wrong", bucket_id=bucket_id, entry=entry)
        entries.append(payload)
        start = end
    return entries


def _decode_names(part: bytes, bucket_id: int | None) -> SnapshotNames:
    front = _checked(part, "header", bucket_id)
    version = _FRONT.unpack_from(front)[1]
    if version != VERSION:
        where = "a snapshot" if bucket_id is None else f"the snapshot of bucket {bucket_id}"
        raise SnapshotVersionError(where, found=str(version), supported=str(VERSION))
    try:
        return SnapshotNames(**json.loads(front[FRONT_BYTES:]))
    except (TypeError, ValueError) as error:
        raise SnapshotCorruptedError(f"its names are not readable: {error}", bucket_id=bucket_id) from error


def _checksum(data: bytes) -> bytes:
    checksum: int = google_crc32c.value(data)
    return _CHECKSUM.pack(checksum)


def _checked(part: bytes, what: str, bucket_id: int | None) -> bytes:
    data, checksum = part[: -_CHECKSUM.size], part[-_CHECKSUM.size :]
    if _checksum(data) != checksum:
        raise SnapshotCorruptedError(f"the checksum of its {what} is wrong", bucket_id=bucket_id)
    return data
