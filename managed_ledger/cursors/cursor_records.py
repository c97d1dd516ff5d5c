"""How a cursor is stored: mark-delete, properties, base bitmaps and journal records. Pure encoding.

A journal record holds the additions of one flush:

    mark-delete ledger i64, entry i64 | parts u32 | parts x (ledger u64 | length u32 | portable Roaring)

Everything at or below the mark-delete of a record is acknowledged as well, so a cumulative acknowledgement of a
million entries is a record of 20 bytes. Replaying base and journal in any order gives the same state, since both
only add; a seek, which takes away, rewrites the whole cursor.
"""

import json
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pyroaring import BitMap

from managed_ledger.disk import keys
from managed_ledger.positions.position import Position

_POSITION = struct.Struct("<qq")
_HEAD = struct.Struct("<qqI")
_PART = struct.Struct("<QI")


@dataclass(slots=True, eq=False)
class StoredCursor:
    """All that is stored of one cursor."""

    mark_delete: Position
    properties: dict[str, str] = field(default_factory=dict)
    bitmaps: dict[int, BitMap] = field(default_factory=dict)
    base_ledger_ids: set[int] = field(default_factory=set)
    journal_sequence: int = 0
    """The next one to use."""
    journal_records: int = 0
    journal_bytes: int = 0


def encode_position(position: Position) -> bytes:
    """A mark-delete position."""
    return _POSITION.pack(*position)


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """All properties in one value, so that a change of several is one write."""
    return json.dumps(dict(properties), separators=(",", ":")).encode()


def encode_journal(mark_delete: Position, acknowledged: Mapping[int, BitMap]) -> bytes:
    """One journal record."""
    parts = [_HEAD.pack(*mark_delete, len(acknowledged))]
    for ledger_id, bitmap in acknowledged.items():
        data = bitmap.serialize()
        parts += (_PART.pack(ledger_id, len(data)), data)
    return b"".join(parts)


def encode_base(bitmap: BitMap) -> bytes:
    """All that is acknowledged of one ledger."""
    bitmap.run_optimize()
    return bytes(bitmap.serialize())


def decode(rows: Iterable[tuple[bytes, bytes]]) -> StoredCursor | None:
    """A cursor from all its rows; None where there are none."""
    cursor: StoredCursor | None = None
    for key, value in rows:
        kind = key[8]
        if kind == keys.CURSOR_MARK_DELETE:
            cursor = StoredCursor(Position(*_POSITION.unpack(value)))
        # The mark-delete sorts first, so without it there is no cursor.
        elif cursor is None:
            return None
        elif kind == keys.CURSOR_PROPERTIES:
            cursor.properties = json.loads(value)
        elif kind == keys.CURSOR_BASE:
            ledger_id = keys.number_at_end(key)
            cursor.base_ledger_ids.add(ledger_id)
            cursor.bitmaps[ledger_id] = BitMap.deserialize(value)
        else:
            cursor.journal_sequence = keys.number_at_end(key) + 1
            cursor.journal_records += 1
            cursor.journal_bytes += len(value)
            _replay(cursor, value)
    return cursor


def _replay(cursor: StoredCursor, record: bytes) -> None:
    ledger_id, entry_id, parts = _HEAD.unpack_from(record)
    cursor.mark_delete = max(cursor.mark_delete, Position(ledger_id, entry_id))
    offset = _HEAD.size
    for _ in range(parts):
        ledger_id, length = _PART.unpack_from(record, offset)
        offset += _PART.size
        bitmap = BitMap.deserialize(record[offset : offset + length])
        offset += length
        known = cursor.bitmaps.setdefault(ledger_id, bitmap)
        if known is not bitmap:
            known |= bitmap
