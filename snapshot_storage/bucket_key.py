"""The name of a bucket: the key of the cursor property that points to its snapshot.

A Pulsar broker reads properties that are written here, and the other way round, so the format is Pulsar's.
"""

import re
from typing import NamedTuple

BUCKET_KEY_PREFIX = "#pulsar.internal.delayed.bucket"

_BUCKET_KEY = re.compile(re.escape(BUCKET_KEY_PREFIX) + r"_(0|[1-9][0-9]{0,18})_(0|[1-9][0-9]{0,18})")

_ID_MAX = 2**63 - 1

_ID_DIGITS_MAX = 19
"""Longer ones are above the largest id; beyond some thousands of digits Python refuses to read a number."""


class LedgerRange(NamedTuple):
    """The ledgers of one bucket, both ends included."""

    first_ledger_id: int
    last_ledger_id: int


def bucket_key(first_ledger_id: int, last_ledger_id: int) -> str:
    """Return the property key of the bucket over these ledgers, both included.

    >>> bucket_key(1, 5)
    '#pulsar.internal.delayed.bucket_1_5'
    """
    assert 0 <= first_ledger_id <= last_ledger_id
    return f"{BUCKET_KEY_PREFIX}_{first_ledger_id}_{last_ledger_id}"


def parse_bucket_key(key: str) -> LedgerRange | None:
    """Return the ledgers a property key names, or None where the key is not a bucket's.

    Pulsar refuses to recover at all when a key with the prefix cannot be parsed. Such a key points to no bucket that
    can be loaded, so it is no reason to lose the others.

    >>> parse_bucket_key("#pulsar.internal.delayed.bucket_1_5")
    LedgerRange(first_ledger_id=1, last_ledger_id=5)
    >>> parse_bucket_key("#pulsar.internal.delayed.bucket_5_1") is None
    True
    """
    match = _BUCKET_KEY.fullmatch(key)
    if match is None:
        return None
    ledgers = LedgerRange(int(match[1]), int(match[2]))
    return ledgers if ledgers.first_ledger_id <= ledgers.last_ledger_id <= _ID_MAX else None


def parse_bucket_id(value: str) -> int | None:
    """Return the snapshot id that a property's value names, or None where it names none.

    >>> parse_bucket_id("7")
    7
    >>> parse_bucket_id("9" * 5_000) is None
    True
    """
    if len(value) > _ID_DIGITS_MAX or not (value.isascii() and value.isdigit()):
        return None
    bucket_id = int(value)
    return bucket_id if bucket_id <= _ID_MAX else None
