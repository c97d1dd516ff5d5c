"""The rows of one RocksDB table file (`*.sst`), read without RocksDB, as far as they are whole.

A table is blocks one behind the other: of data, then index, ranges that are deleted, properties, the list of those
three (metaindex), and a footer. Each block is followed by its compression and its checksum. Blocks of data are found by
the index. Where that is cut off or damaged they are found by walking: a block of data says itself where it ends.

    block:   content | compression u8 | checksum u32
    content: (shared varint | rest varint | value length varint | rest of the key | value)* | restarts u32* | count u32

A key ends with 8 bytes: sequence number and kind. (RocksDB's `block_builder.cc` and `format.cc`, format version 6 as
RocksDB 9.8 writes it, and the versions 4 and 5 before it; xxh3 and CRC32C as checksums; LZ4 or no compression.)
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import google_crc32c
import lz4.block
import xxhash

from managed_ledger.repair.varints import read_varint

DELETION, VALUE, SINGLE_DELETION, RANGE_DELETION = 0, 1, 7, 15
_KINDS = (DELETION, VALUE, SINGLE_DELETION, RANGE_DELETION)

_FOOTER_BYTES = 53
_MAGIC = 0x88E241B785F4CFF7
_EXTENDED_MAGIC = b"\x3e\x00\x7a\x00"
_EXTENDED_FOOTER = struct.Struct("<B4sIII24xIQ")
_TRAILER = struct.Struct("<BI")
_NO_COMPRESSION, _LZ4 = 0, 4
_CRC32C, _XXH3 = 1, 4
_CRC_MASK_DELTA = 0xA282EAD8
_XXH3_LAST_BYTE_PRIME = 0x6B9083D9
_U32 = 0xFFFFFFFF
_RESTART_INTERVAL = 16
"""RocksDB's default, which the log's folders have: of so many rows one has its whole key."""


class TableRow(NamedTuple):
    """One change of one key."""

    key: bytes
    sequence: int
    kind: int
    value: bytes
    """The value, or the end of a range that was deleted."""


@dataclass(slots=True)
class Block:
    """The rows of one block."""

    offset: int
    rows: list[TableRow]
    is_proven: bool
    """Whether its checksum fits its bytes."""


@dataclass(slots=True)
class SurveyedTable:
    """The contents of a table file, and its faults."""

    content: bytes
    damage: list[str] = field(default_factory=list)
    family: str | None = None
    """The name of its column family, None where its properties cannot be read."""
    family_id: int | None = None
    """The number of its column family, likewise."""
    handles: list[tuple[int, int]] | None = None
    """Offset and size of each block of data; None where the index is damaged, and they are walked."""
    range_deletions: tuple[int, int] | None = None
    checksums: "Checksums" = field(default_factory=lambda: Checksums(_XXH3, None))

    def blocks(self) -> Iterator[Block]:
        """Every block that has readable rows; adds to `damage` what has not, or none that is proven."""
        if self.handles is None:
            yield from self._walked()
        else:
            for handle in self.handles:
                yield from self._block_at(handle)
        if self.range_deletions is not None:
            yield from self._block_at(self.range_deletions)

    def block_at(self, offset: int) -> Block:
        """Read a block again that `blocks` gave."""
        handle = next((handle for handle in self.handles or () if handle[0] == offset), None)
        if handle is None:
            walked = _walk(self.content, offset)
            assert walked is not None
            return Block(offset, walked[1], is_proven=True)
        (block,) = self._block_at(handle)
        return block

    def _block_at(self, handle: tuple[int, int]) -> Iterator[Block]:
        offset, size = handle
        is_proven = _is_whole(self.content, offset, size, self.checksums)
        if not is_proven:
            self.damage.append(f"the block of {size} bytes at {offset} is not what was written")
        try:
            rows = list(_rows(_content(self.content, offset, size)))
        except _BadBlockError:
            if is_proven:
                self.damage.append(f"the block of {size} bytes at {offset} is of a kind that is not known here")
            return
        yield Block(offset, rows, is_proven)

    def _walked(self) -> Iterator[Block]:
        """Blocks from the first on, up to one that is none; without a footer the checksums must agree on its number."""
        offset = 0
        while (walked := _walk(self.content, offset)) is not None:
            size, rows = walked
            if not _is_whole(self.content, offset, size, self.checksums):
                break
            yield Block(offset, rows, is_proven=True)
            offset += size + _TRAILER.size
        if offset < len(self.content):
            self.damage.append(f"it was read block by block, up to byte {offset} of {len(self.content)}")


def read_table(content: bytes) -> SurveyedTable:
    """Read the footer and the index of a table file; `SurveyedTable.blocks` reads its data.

    >>> read_table(b"nothing").damage
    ['its end is missing or damaged']
    """
    table = SurveyedTable(content)
    try:
        metaindex, table.checksums = _footer(content)
    except (_BadBlockError, ValueError):
        table.damage.append("its end is missing or damaged")
        _learn_checksums(table)
        return table
    try:
        named = dict(_handles_by_name(_checked(content, *metaindex, table.checksums)))
    except _BadBlockError:
        table.damage.append("the list of its parts is damaged")
        return table
    table.range_deletions = named.get(b"rocksdb.range_del")
    try:
        properties = dict(_plain_rows(_checked(content, *named[b"rocksdb.properties"], table.checksums)))
        table.family = properties[b"rocksdb.column.family.name"].decode()
        table.family_id, _ = read_varint(properties[b"rocksdb.column.family.id"], 0)
    except (_BadBlockError, LookupError, ValueError):
        table.damage.append("its properties are damaged")
    try:
        table.handles = list(_indexed(_checked(content, *_index_of(content, named), table.checksums)))
    except (_BadBlockError, LookupError, ValueError):
        table.damage.append("its index is damaged")
    return table


class Checksums(NamedTuple):
    """How the checksums of a table are made."""

    kind: int
    base: int | None
    """The table's own number, which is part of each; None where the footer that has it is gone."""


class _BadBlockError(Exception):
    """The bytes are no block, or not those that were written."""


def _footer(content: bytes) -> tuple[tuple[int, int], Checksums]:
    """Where the metaindex is, and how checksums are made."""
    start = len(content) - _FOOTER_BYTES
    if start < 0:
        raise _BadBlockError
    kind, extended, checksum, base, size, version, magic = _EXTENDED_FOOTER.unpack_from(content, start)
    if magic != _MAGIC or kind not in (_CRC32C, _XXH3):
        raise _BadBlockError
    if version < 6:
        at = start + 1
        offset, at = read_varint(content, at)
        size, _ = read_varint(content, at)
        return (offset, size), Checksums(kind, 0)
    # The footer's checksum is over itself with zeros in its place.
    footer = content[start : start + 5] + bytes(4) + content[start + 9 :]
    modifier = _modifier(base, start)
    if extended != _EXTENDED_MAGIC or checksum != (_plain_checksum(kind, footer) + modifier) & _U32:
        raise _BadBlockError
    return (start - _TRAILER.size - size, size), Checksums(kind, base)


def _learn_checksums(table: SurveyedTable) -> None:
    """Find the table's own number from its first block, where the footer is gone."""
    walked = _walk(table.content, 0)
    if walked is not None:
        size = walked[0]
        compression, stored = _TRAILER.unpack_from(table.content, size)
        plain = _block_checksum(_XXH3, table.content[:size], compression)
        table.checksums = Checksums(_XXH3, (stored - plain) & _U32)


def _modifier(base: int | None, offset: int) -> int:
    return ((base ^ ((offset & _U32) + (offset >> 32))) & _U32) if base else 0


def _is_whole(content: bytes, offset: int, size: int, checksums: Checksums) -> bool:
    end = offset + size
    if offset < 0 or end + _TRAILER.size > len(content):
        return False
    compression, stored = _TRAILER.unpack_from(content, end)
    expected = _block_checksum(checksums.kind, content[offset:end], compression)
    return bool(stored == (expected + _modifier(checksums.base, offset)) & _U32)


def _block_checksum(kind: int, block: bytes, compression: int) -> int:
    return _plain_checksum(kind, block + bytes([compression]))


def _plain_checksum(kind: int, data: bytes) -> int:
    if kind == _XXH3:
        # RocksDB hashes all but the last byte, and folds that one in.
        digest: int = xxhash.xxh3_64_intdigest(data[:-1])
        return (digest ^ data[-1] * _XXH3_LAST_BYTE_PRIME) & _U32
    crc: int = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + _CRC_MASK_DELTA) & _U32


def _checked(content: bytes, offset: int, size: int, checksums: Checksums) -> bytes:
    if not _is_whole(content, offset, size, checksums):
        raise _BadBlockError
    return _content(content, offset, size)


def _content(content: bytes, offset: int, size: int) -> bytes:
    """A block as it was before it was compressed."""
    block = content[offset : offset + size]
    if len(block) < size or offset + size >= len(content):
        raise _BadBlockError
    compression = content[offset + size]
    if compression == _NO_COMPRESSION:
        return block
    if compression != _LZ4:
        raise _BadBlockError
    try:
        length, start = read_varint(block, 0)
        decompressed: bytes = lz4.block.decompress(block[start:], uncompressed_size=length)
    except (lz4.block.LZ4BlockError, ValueError, MemoryError, OverflowError) as error:
        raise _BadBlockError from error
    return decompressed


def _plain_rows(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of a block, keys as they are stored."""
    if len(block) < 4:
        raise _BadBlockError
    end = len(block) - 4 - 4 * (int.from_bytes(block[-4:], "little") & 0x7FFFFFFF)
    at, key = 0, b""
    while at < end:
        key, value, at = _row_at(block, at, key)
        yield key, value


def _row_at(block: bytes, at: int, previous: bytes) -> tuple[bytes, bytes, int]:
    """Key and value of the row here, and where the next one is."""
    try:
        shared, at = read_varint(block, at)
        rest, at = read_varint(block, at)
        length, at = read_varint(block, at)
    except ValueError as error:
        raise _BadBlockError from error
    start, end = at + rest, at + rest + length
    if shared > len(previous) or end > len(block):
        raise _BadBlockError
    return previous[:shared] + block[at:start], block[start:end], end


def _rows(block: bytes) -> Iterator[TableRow]:
    for key, value in _plain_rows(block):
        yield _row(key, value)


def _row(internal_key: bytes, value: bytes) -> TableRow:
    if len(internal_key) < 8:
        raise _BadBlockError
    packed = int.from_bytes(internal_key[-8:], "little")
    if packed & 0xFF not in _KINDS:
        raise _BadBlockError
    return TableRow(internal_key[:-8], packed >> 8, packed & 0xFF, value)


def _handles_by_name(block: bytes) -> Iterator[tuple[bytes, tuple[int, int]]]:
    for name, value in _plain_rows(block):
        try:
            offset, at = read_varint(value, 0)
            yield name, (offset, read_varint(value, at)[0])
        except ValueError:
            # An entry that is no handle is passed over.
            continue


def _index_of(content: bytes, named: dict[bytes, tuple[int, int]]) -> tuple[int, int]:
    """Where the index is: named in format 6, in the footer before."""
    if b"rocksdb.index" in named:
        return named[b"rocksdb.index"]
    start = len(content) - _FOOTER_BYTES + 1
    _, at = read_varint(content, start)
    _, at = read_varint(content, at)
    offset, at = read_varint(content, at)
    return offset, read_varint(content, at)[0]


def _indexed(block: bytes) -> Iterator[tuple[int, int]]:
    """Handles of the blocks of data. Each row has its whole key, no length of its value, and a whole handle."""
    if len(block) < 4:
        raise _BadBlockError
    end = len(block) - 4 - 4 * (int.from_bytes(block[-4:], "little") & 0x7FFFFFFF)
    at = 0
    try:
        while at < end:
            shared, at = read_varint(block, at)
            rest, at = read_varint(block, at)
            if shared:
                raise _BadBlockError
            offset, at = read_varint(block, at + rest)
            size, at = read_varint(block, at)
            yield offset, size
    except ValueError as error:
        raise _BadBlockError from error


def _walk(content: bytes, offset: int) -> tuple[int, list[TableRow]] | None:
    """Size and rows of the block of data that begins here, None where none does."""
    for found in (_walk_lz4(content, offset), _walk_plain(content, offset)):
        if found is None:
            continue
        size, block = found
        if offset + size + _TRAILER.size > len(content):
            continue
        try:
            rows = list(_rows(block))
        except _BadBlockError:
            continue
        if rows:
            return size, rows
    return None


def _walk_lz4(content: bytes, offset: int) -> tuple[int, bytes] | None:
    """Size and content of the LZ4 block here: it ends where as much as it promises has come out of it."""
    try:
        length, start = read_varint(content, offset)
        end = start
        produced = 0
        while produced < length:
            token = content[end]
            literals, end = _lz4_length(content, end + 1, token >> 4)
            end += literals
            produced += literals
            if produced < length:
                matched, end = _lz4_length(content, end + 2, token & 15)
                produced += matched + 4
        if produced != length or content[end] != _LZ4:
            return None
        return end - offset, lz4.block.decompress(content[start:end], uncompressed_size=length)
    except (ValueError, IndexError, lz4.block.LZ4BlockError, MemoryError, OverflowError):
        return None


def _lz4_length(content: bytes, at: int, length: int) -> tuple[int, int]:
    if length == 15:
        while content[at] == 255:
            length, at = length + 255, at + 1
        length, at = length + content[at], at + 1
    return length, at


def _walk_plain(content: bytes, offset: int) -> tuple[int, bytes] | None:
    """Size and content of the block here that is not compressed: its restarts follow its last row."""
    at, key, count = offset, b"", 0
    while True:
        end = at + 4 * -(-count // _RESTART_INTERVAL) + 4
        # Four zero bytes are the first restart, which is 0, and no row: its key would be empty.
        if count and content[at : at + 4] == bytes(4):
            is_end = int.from_bytes(content[end - 4 : end], "little") & 0x7FFFFFFF == -(-count // _RESTART_INTERVAL)
            return (end - offset, content[offset:end]) if is_end and content[end : end + 1] == b"\0" else None
        try:
            key, _, at = _row_at(content, at, key)
        except _BadBlockError:
            return None
        if len(key) < 8:
            return None
        count += 1
