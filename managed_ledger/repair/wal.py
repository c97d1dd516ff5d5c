"""The changes in one write-ahead log of RocksDB (`*.log`), read without RocksDB, as far as they are whole.

A log is of fragments (`rocksdb_store/log_format.py`), each with a part of a write. The parts joined are a write: its
sequence number, the count of its changes, and those:

    kind u8 | family varint, if the kind says so | key, after its length | value, after its length, if there is one

One wrong byte in a fragment is put right: in 32 KiB no two changes of one byte have the same CRC32C, so the checksum
says which byte it was. A fragment with more damage is lost, and with it the changes that reach into it. Earlier changes
of the same write count, as each of them is read by itself. (RocksDB's `log_format.h` and `write_batch.cc`.)
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import google_crc32c

from managed_ledger.repair.varints import read_bytes, read_varint
from managed_ledger.rocksdb_store.log_format import BLOCK_BYTES, FIRST, FRAGMENT, FULL, LAST

_MASK_DELTA = 0xA282EAD8
_U32 = 0xFFFFFFFF
_HEADER = struct.Struct("<QI")

PUT, DELETE, DELETE_RANGE = "put", "delete", "delete range"
_KINDS = {
    0x01: (PUT, False),
    0x05: (PUT, True),
    0x00: (DELETE, False),
    0x04: (DELETE, True),
    0x0F: (DELETE_RANGE, False),
    0x0E: (DELETE_RANGE, True),
}


class Change(NamedTuple):
    """One change of one key."""

    sequence: int
    family_id: int
    kind: str
    key: bytes
    value: bytes
    """The value, or the end of a range that is deleted; empty for the deletion of a key."""


@dataclass(slots=True)
class WriteAheadLog:
    """The contents of a write-ahead log, and its faults."""

    changes: list[Change] = field(default_factory=list)
    damage: list[str] = field(default_factory=list)
    """Where something was lost."""
    corrected: list[str] = field(default_factory=list)
    """Where one wrong byte was put right."""
    is_cut: bool = False
    """Whether it ends within a write, as it does after a crash."""


@dataclass(slots=True)
class _Fragment:
    kind: int
    data: bytes
    offset: int


def read_log(content: bytes) -> WriteAheadLog:
    """Read a write-ahead log."""
    log = WriteAheadLog()
    for record in records(content, log):
        _take(log, record)
    return log


@dataclass(slots=True)
class Record:
    """One write, its parts joined, or as many of its first parts as are whole."""

    data: bytes
    offset: int
    is_whole: bool


def records(content: bytes, log: WriteAheadLog) -> Iterator[Record]:
    """Give the writes of a write-ahead log, in order; faults are added to `log`."""
    parts: list[_Fragment] = []
    for fragment in _fragments(content, log):
        begins = fragment is not None and fragment.kind in (FULL, FIRST)
        if (fragment is None or begins) and parts:
            # The earlier parts of the same write are whole.
            yield _joined(parts, is_whole=False)
            parts = []
        if fragment is not None and (begins or parts):
            parts.append(fragment)
        if parts and parts[-1].kind in (FULL, LAST):
            yield _joined(parts, is_whole=True)
            parts = []
    if parts:
        # The last write of a process that crashed was never confirmed; it is kept all the same, as it is whole.
        log.is_cut = True
        yield _joined(parts, is_whole=False)


def _joined(parts: list[_Fragment], *, is_whole: bool) -> Record:
    return Record(b"".join(part.data for part in parts), parts[0].offset, is_whole)


def _take(log: WriteAheadLog, record: Record) -> None:
    data = record.data
    if len(data) < _HEADER.size:
        return
    sequence, count = _HEADER.unpack_from(data)
    at = _HEADER.size
    try:
        for number in range(count):
            change, at = _change(data, at, sequence + number)
            log.changes.append(change)
    except ValueError as error:
        if record.is_whole:
            log.damage.append(f"the write {sequence} at byte {record.offset} makes no sense: {error}")


def _change(data: bytes, at: int, sequence: int) -> tuple[Change, int]:
    if at >= len(data) or data[at] not in _KINDS:
        raise ValueError("a change of a kind that the log has none of")
    kind, has_family = _KINDS[data[at]]
    family_id, at = read_varint(data, at + 1) if has_family else (0, at + 1)
    key, at = read_bytes(data, at)
    value, at = read_bytes(data, at) if kind != DELETE else (b"", at)
    return Change(sequence, family_id, kind, key, value), at


def _fragments(content: bytes, log: WriteAheadLog) -> Iterator[_Fragment | None]:
    """Fragments in order; None where one or more are lost."""
    for start in range(0, len(content), BLOCK_BYTES):
        block = content[start : start + BLOCK_BYTES]
        is_last = start + BLOCK_BYTES >= len(content)
        position = 0
        while position + FRAGMENT.size <= len(block) and any(block[position : position + FRAGMENT.size]):
            end = _end_of_whole(block, position)
            if end is not None:
                data = block[position + FRAGMENT.size : end]
                yield _Fragment(block[position + 6], data, start + position)
                position = end
                continue
            found = _mended(block, position, is_cut=is_last)
            where = f"byte {start + position}"
            if found is None:
                # Reading goes on at the next fragment that is whole.
                position = _next_whole(block, position + 1)
                if position == len(block) and is_last:
                    log.is_cut = True
                else:
                    log.damage.append(f"{where} to {start + position} are not what was written")
                yield None
                continue
            mended, end = found
            log.corrected.append(f"one wrong byte in the fragment at {where}")
            yield _Fragment(mended[0], mended[1:], start + position)
            position = end


def _mended(block: bytes, position: int, *, is_cut: bool) -> tuple[bytes, int] | None:
    """Type and data of a fragment with one wrong byte put right, and where it ends."""
    masked, length, _ = FRAGMENT.unpack_from(block, position)
    ends = [position + FRAGMENT.size + length]
    following = _next_whole(block, position + 1)
    # Where the length is wrong, the fragment ends where the next one begins, or with the block.
    if following != ends[0]:
        ends.append(following)
    if not is_cut and len(block) not in ends:
        ends.append(len(block))
    for end in ends:
        if not position + FRAGMENT.size <= end <= len(block):
            continue
        data = block[position + 6 : end]
        if data[0] not in range(FULL, LAST + 1) and end != ends[0]:
            continue
        mended = with_one_byte_put_right(data, _unmasked(masked))
        if mended is not None and mended[0] in range(FULL, LAST + 1):
            return mended, end
    return None


def with_one_byte_put_right(data: bytes, checksum: int) -> bytes | None:
    """The data that has this CRC32C and differs in at most one byte; also where only the checksum is wrong in one.

    A CRC is linear: the difference of two checksums depends only on the bytes that differ and their distance from the
    end. So the difference is taken back byte by byte, until it is that of one byte at the end.

    >>> with_one_byte_put_right(b"To be, or nOt", google_crc32c.value(b"To be, or not"))
    b'To be, or not'
    >>> with_one_byte_put_right(b"To bE, or nOt", google_crc32c.value(b"To be, or not")) is None
    True
    """
    difference = google_crc32c.value(data) ^ checksum
    if _is_one_byte(difference):
        # The data is right, or one byte of its checksum is wrong.
        return data
    for at in range(len(data) - 1, -1, -1):
        wrong = _OF_ONE_BYTE.get(difference)
        if wrong is not None:
            return data[:at] + bytes([data[at] ^ wrong]) + data[at + 1 :]
        difference = _without_last_zero(difference)
    return None


def _is_one_byte(difference: int) -> bool:
    return any(difference & ~(0xFF << shift) == 0 for shift in (0, 8, 16, 24))


def _without_last_zero(state: int) -> int:
    """Take back what a byte 0 did to the state of a CRC."""
    index = _BY_HIGH_BYTE[state >> 24]
    return ((state ^ _TABLE[index]) << 8 | index) & _U32


def _next_whole(block: bytes, position: int) -> int:
    """Where the next fragment begins that is whole, or the end of the block."""
    for start in range(position, len(block) - FRAGMENT.size):
        if _end_of_whole(block, start) is not None:
            return start
    return len(block)


def _end_of_whole(block: bytes, position: int) -> int | None:
    """Where the fragment ends that begins here, None where none does that is whole."""
    start = position + FRAGMENT.size
    if start > len(block) or not FULL <= block[start - 1] <= LAST:
        return None
    masked, length, _ = FRAGMENT.unpack_from(block, position)
    end: int = start + length
    if end > len(block):
        return None
    # The checksum is of the type, too.
    return end if google_crc32c.value(block[start - 1 : end]) == _unmasked(masked) else None


def _unmasked(masked: int) -> int:
    rotated = (masked - _MASK_DELTA) & _U32
    return (rotated >> 17 | rotated << 15) & _U32


def _table() -> list[int]:
    table = []
    for byte in range(256):
        state = byte
        for _ in range(8):
            state = state >> 1 ^ (0x82F63B78 if state & 1 else 0)
        table.append(state)
    return table


_TABLE = _table()
_BY_HIGH_BYTE = {state >> 24: byte for byte, state in enumerate(_TABLE)}
_OF_ONE_BYTE = {state: byte for byte, state in enumerate(_TABLE) if byte}
