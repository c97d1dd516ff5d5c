"""The records that are of no single topic: one small object beside the list of the bundles.

A data folder with one bundle has none: there they are records of the log, and are put there when it comes from a place
that has the object.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from managed_ledger.disk import keys, meta_copies
from managed_ledger.disk.database import Batch, RocksDatabase
from managed_ledger.disk.keys import Family
from managed_ledger.errors import StoreCorruptedError, StoreVersionError

SHARED_RECORDS: Final = "settings.json"
FORMAT: Final = "postdate settings 1"
TRAIL: Final = "trail"
"""The kind of the records of the trail, which are in any bundle."""
_WRITE_BUFFER_BYTES: Final = 2**20


def is_shared(name: str) -> bool:
    """Whether a record is of no single topic, by its name: a kind, and whose it is.

    >>> is_shared("permissions public/default"), is_shared("topicEpoch persistent://public/default/orders")
    (True, False)
    """
    kind, _, owner = name.partition(" ")
    return kind != TRAIL and "://" not in owner


def encode_records(records: Mapping[str, bytes]) -> bytes:
    """Return the bytes of the object; records are text."""
    texts = {name: records[name].decode() for name in sorted(records)}
    return json.dumps({"format": FORMAT, "records": texts}, indent=1).encode()


def decode_records(data: bytes, place: str) -> dict[str, bytes]:
    """Read the bytes of the object.

    Args:
        data: The bytes.
        place: Where they are from, for the error.

    Raises:
        StoreVersionError: They are of another format.
        StoreCorruptedError: They make no sense.
    """
    try:
        content = json.loads(data)
        if content["format"] != FORMAT:
            raise StoreVersionError(f"{place} has the format {content['format']!r}, and this version reads {FORMAT!r}")
        return {str(name): text.encode() for name, text in content["records"].items()}
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise StoreCorruptedError(f"{place} is damaged, or not Postdate's: {error}") from error


def shared_in_log(folder: Path) -> dict[str, bytes]:
    """Return the records of a log that are of no single topic.

    Raises:
        LedgerError: There is no log, or it cannot be read.
    """
    database = RocksDatabase.open_read_only(folder)
    try:
        return _shared_rows(database)
    finally:
        database.release()


def put_shared(folder: Path, records: Mapping[str, bytes]) -> None:
    """Make these the records of a log, which nobody has open, that are of no single topic: others of before go.

    Raises:
        LedgerError: There is no log, or the disk refuses.
    """
    if shared_in_log(folder) == records:
        return
    database = RocksDatabase.open(folder, write_buffer_bytes=_WRITE_BUFFER_BYTES)
    try:
        batch = database.new_batch()
        for name in _shared_rows(database).keys() - records.keys():
            _change(batch, keys.record_key(name), None)
        for name, value in records.items():
            _change(batch, keys.record_key(name), value)
        database.write(batch, sync=True)
    except BaseException:
        database.release()
        raise
    database.close()


def _shared_rows(database: RocksDatabase) -> dict[str, bytes]:
    start, end = keys.prefix_range(keys.record_key(""))
    found = {key[len(start) :].decode(): value for key, value in database.scan(Family.META, start, end)}
    return {name: value for name, value in found.items() if is_shared(name)}


def _change(batch: Batch, key: bytes, value: bytes | None) -> None:
    for family, place in ((Family.META, key), (Family.CURSORS, meta_copies.copy_key(key))):
        if value is None:
            batch.delete(family, place)
        else:
            batch.put(family, place, value)
