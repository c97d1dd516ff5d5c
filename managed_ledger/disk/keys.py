"""Names of column families and keys: the whole map of the disk.

    meta      "format"                          -> format version and marker
              "counters"                        -> next ledger id, next owner id
              "m" name                          -> owner id of the managed ledger
              "l" owner ledger                  -> `Ledger.record`
              "c" owner name                    -> owner id of the cursor
              "d" owner producer                -> the highest sequence id of a producer, and its time (`sequence_ids`)
              "h" owner ledger                  -> entries that a repair found lost, portable Roaring
              "r" name                          -> a record of the store's user, bytes of its own
    headers   ledger first_entry                -> rows of entries first_entry, first_entry + 1, ...
    payloads  ledger first_entry                -> payload block of entries first_entry, ...
    cursors   owner 0                           -> mark-delete position
              owner 1                           -> properties, JSON
              owner 2 ledger                    -> base: acknowledged entries, portable Roaring
              owner 3 sequence                  -> journal: positions acknowledged since
              0xff key                          -> a copy of that row of `meta` (`meta_copies`)
    the last three: 0 0                         -> an empty block (`FIRST_KEY`)

Numbers in keys are 8 bytes big endian, so keys sort by them. Ledger ids are unique in a store, owner ids (managed
ledgers and cursors) as well; neither is used twice.
"""

import struct
from enum import StrEnum


class Family(StrEnum):
    """The column families."""

    META = "meta"
    HEADERS = "headers"
    PAYLOADS = "payloads"
    CURSORS = "cursors"


FORMAT_KEY = b"format"
COUNTERS_KEY = b"counters"

pair = struct.Struct(">QQ")
_one = struct.Struct(">Q")

block_key = pair.pack
"""Key of the block of `(ledger_id, first_entry_id)`."""

FIRST_KEY = block_key(0, 0)
"""Of no ledger and no cursor. It is in a table of each family but `meta` from the start, since `Rdict.repair` forgets a
family without a table, and with it the rows that the write-ahead log has of it."""
EMPTY_BLOCK = (4).to_bytes(4, "little")
"""No headers, and no payloads (`entries.blocks`)."""


def ledger_range(ledger_id: int) -> tuple[bytes, bytes]:
    """Start and end of every block of one ledger."""
    return pair.pack(ledger_id, 0), pair.pack(ledger_id + 1, 0)


def managed_ledger_key(name: str) -> bytes:
    """Where the owner id of a managed ledger is."""
    return b"m" + name.encode()


def ledger_record_key(owner_id: int, ledger_id: int) -> bytes:
    """Where the record of a ledger is."""
    return b"l" + pair.pack(owner_id, ledger_id)


def lost_entries_key(owner_id: int, ledger_id: int) -> bytes:
    """Where the entries are that a ledger has lost, for a ledger that was repaired."""
    return b"h" + pair.pack(owner_id, ledger_id)


def cursor_key(owner_id: int, name: str) -> bytes:
    """Where the owner id of a cursor of a managed ledger is."""
    return b"c" + _one.pack(owner_id) + name.encode()


def sequence_id_key(owner_id: int, producer_name: str) -> bytes:
    """Where the highest sequence id of a producer of a managed ledger is."""
    return b"d" + _one.pack(owner_id) + producer_name.encode()


def record_key(name: str) -> bytes:
    """Where a record of the store's user is."""
    return b"r" + name.encode()


def prefix_range(prefix: bytes, owner_id: int | None = None) -> tuple[bytes, bytes]:
    """Start and end of the keys of a kind, of one owner or of all."""
    if owner_id is None:
        return prefix, bytes([prefix[0] + 1])
    return prefix + _one.pack(owner_id), prefix + _one.pack(owner_id + 1)


CURSOR_MARK_DELETE, CURSOR_PROPERTIES, CURSOR_BASE, CURSOR_JOURNAL = range(4)


def cursor_state_key(cursor_id: int, kind: int, number: int | None = None) -> bytes:
    """Where one part of a cursor is; `number` is a ledger id or a sequence number."""
    head = _one.pack(cursor_id) + bytes([kind])
    return head if number is None else head + _one.pack(number)


def cursor_range(cursor_id: int) -> tuple[bytes, bytes]:
    """Start and end of everything of a cursor."""
    return _one.pack(cursor_id), _one.pack(cursor_id + 1)


def number_at_end(key: bytes) -> int:
    """The last number of a key."""
    number: int = _one.unpack_from(key, len(key) - 8)[0]
    return number
