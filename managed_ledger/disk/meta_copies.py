"""A second copy of every row of the family `meta`, in the family `cursors`: for `postdate ledger repair` alone.

Names of topics and records of ledgers are a few KiB, mostly in one block of one table, and without them no entry has a
known topic. Tables of another family are other files, so one damaged file never costs both. A commit that writes a row
writes its copy in the same batch. Keys of cursors begin with an owner's number, which is never as large as the prefix.
"""

from managed_ledger.disk import keys

PREFIX = b"\xff"
_KINDS = (b"c", b"h", b"l", b"m", b"r")
"""Kinds of rows with copies: names of cursors, ledgers' lost entries, ledgers, names of topics, records."""


def copy_key(key: bytes) -> bytes:
    """Where the copy of a row of `meta` is, in `cursors`."""
    return PREFIX + key


def has_copy(key: bytes) -> bool:
    """Whether a row of `meta` has a copy. Rows that every commit or every opening writes have none."""
    return key[:1] in _KINDS and key != keys.COUNTERS_KEY
