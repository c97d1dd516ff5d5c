"""The headers of entries: 32 bytes each, in columns.

On disk a header is one row of `ROW`; a block of headers is rows and nothing else, so blocks join by concatenation
and many small ones decode at once. Ledger and entry ids are not stored: they follow from the block's key. For
callers the rows become columns (`EntryHeaders`).

    deliver_at_ms i64 | publish_time_ms i64 | sticky_hash i32 | size i32 | message_count i32 | flags u32

Rows without a flag, of a caller that gave none, leave open what the flag says.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from managed_ledger.positions.value_types import Int64Array

NOT_DELAYED = -1
"""`deliver_at_ms` of an entry that is due at once."""

ROW = np.dtype(
    [
        ("deliver_at_ms", "<i8"),
        ("publish_time_ms", "<i8"),
        ("sticky_hash", "<i4"),
        ("size", "<i4"),
        ("message_count", "<i4"),
        ("flags", "<u4"),
    ]
)
ROW_BYTES = ROW.itemsize
_STRUCT: Final = struct.Struct("<qqiiiI")
PACK_ROW = _STRUCT.pack
"""Packs one row of `ROW`; the same layout, without numpy's cost for a single row."""

LOST: Final = 1
"""A flag of an entry that a repair found lost."""
NO_CHUNK: Final = 2
"""A flag of an entry that is known to be no chunk of a larger message."""
CHUNK: Final = 4
"""A flag of a chunk of a larger message."""
LAST_CHUNK: Final = 8
"""A flag of the last chunk of a message."""
OWN_ID: Final = 16
"""A flag of an entry whose message has an id of its producer's own (`message_metadata.OWN_ID_PROPERTY`)."""
MESSAGE_SHIFT: Final = 16
"""The upper half of the flags is a hash: of a chunk's message, which all its chunks have in common, or of an own id."""

Int32s = NDArray[np.int32]
UInt16s = NDArray[np.uint16]
UInt32s = NDArray[np.uint32]
Rows = NDArray[np.int64]
"""Rows as they are stored, four words each; numpy selects and joins these far faster than records."""


class EntryHeader(NamedTuple):
    """The header of one entry; for a few entries this is far cheaper than columns."""

    deliver_at_ms: int
    publish_time_ms: int
    sticky_hash: int
    size: int
    message_count: int
    flags: int


def header_in(rows: bytes, index: int) -> EntryHeader:
    """Return one header of stored rows.

    >>> header_in(PACK_ROW(5, 4, 3, 2, 1, NO_CHUNK), 0)
    EntryHeader(deliver_at_ms=5, publish_time_ms=4, sticky_hash=3, size=2, message_count=1, flags=2)
    """
    return EntryHeader._make(_STRUCT.unpack_from(rows, index * ROW_BYTES))


@dataclass(frozen=True, slots=True, eq=False)
class EntryHeaders:
    """Headers of n entries in order; read-only arrays of one length."""

    ledger_ids: Int64Array
    entry_ids: Int64Array
    deliver_at_ms: Int64Array
    publish_time_ms: Int64Array
    sticky_hashes: Int32s
    sizes: Int32s
    message_counts: Int32s
    flags: UInt32s

    @property
    def id_hashes(self) -> UInt16s:
        """The hashes of the messages' own ids; 0 for a message without one."""
        has_id = self.flags & OWN_ID != 0
        return np.where(has_id, self.flags >> MESSAGE_SHIFT, 0).astype(np.uint16)

    def __len__(self) -> int:
        return len(self.entry_ids)

    def take(self, indices: NDArray[np.intp] | slice) -> "EntryHeaders":
        """The headers at these indices, in that order."""
        return EntryHeaders(*(_read_only(getattr(self, name)[indices]) for name in COLUMNS))

    def where(self, mask: NDArray[np.bool_]) -> "EntryHeaders":
        """Those of a mask, in their order; mostly it is all or nothing, which copies no columns."""
        count = np.count_nonzero(mask)
        if count == len(self):
            return self
        return self.take(np.flatnonzero(mask)) if count else _EMPTY

    @classmethod
    def empty(cls) -> "EntryHeaders":
        """No headers at all."""
        return _EMPTY

    @classmethod
    def concatenate(cls, parts: Sequence["EntryHeaders"]) -> "EntryHeaders":
        """All parts, one after the other."""
        filled = [part for part in parts if len(part)]
        if not filled:
            return _EMPTY
        if len(filled) == 1:
            return filled[0]
        columns = (np.concatenate([getattr(part, name) for part in filled]) for name in COLUMNS)
        return cls(*(_read_only(column) for column in columns))

    @classmethod
    def from_rows(cls, ledger_ids: Int64Array, entry_ids: Int64Array, rows: Rows) -> "EntryHeaders":
        """Columns of stored rows, of these entries."""
        assert len(ledger_ids) == len(entry_ids) == len(rows)

        records = np.ascontiguousarray(rows).view(ROW).reshape(len(rows))
        return cls(
            _read_only(ledger_ids.view()),
            _read_only(entry_ids.view()),
            _read_only(records["deliver_at_ms"].astype(np.int64)),
            _read_only(records["publish_time_ms"].astype(np.int64)),
            _read_only(records["sticky_hash"].astype(np.int32)),
            _read_only(records["size"].astype(np.int32)),
            _read_only(records["message_count"].astype(np.int32)),
            _read_only(records["flags"].astype(np.uint32)),
        )


def decode_rows(data: bytes) -> Rows:
    """Stored rows, without copying them."""
    return np.frombuffer(data, dtype="<i8").reshape(-1, ROW_BYTES // 8)


COLUMNS = tuple(EntryHeaders.__dataclass_fields__)


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    array.setflags(write=False)
    return array


_NO_IDS = np.empty(0, dtype=np.int64)
_EMPTY = EntryHeaders.from_rows(_NO_IDS, _NO_IDS, decode_rows(b""))
