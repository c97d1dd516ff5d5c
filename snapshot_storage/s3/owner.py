"""Whose prefix it is: of one data folder, the first that wrote under it, until someone decides otherwise.

Snapshots without a name in the cursors of a folder are garbage to its service. Under a prefix that two services use,
each would take the other's for that; so would the service of a copied folder, whose original goes on. So the prefix
has an object that says who has it, with a token that the folder knows too, in a file. Each opening to write changes the
token, in this order:

1. the file gets the new token beside the last ones, synced;
2. the object gets it, on the condition that it is still the one that was read.

After a crash in between, the object has one of the tokens of the file. Of a folder and its copy, the one that is
opened first keeps the prefix, and the other is refused: its file knows no token that came later. Programs of one folder
take turns, by a lock beside the file. A token proves the same under any name of the server: the file sorts them by
endpoint, bucket and prefix only to keep the last ones of each.

A folder that has no such token gets the prefix only if someone decides so (`take_over`), as its owner is gone for good.
Both carry a CRC32C, so that damage is told from another's token; older ones have none. Who decides writes both anew.

Left out: a copy that is opened while the original runs is noticed at the original's next start, not before.
"""

import fcntl
import json
import logging
import os
import secrets
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import google_crc32c

from snapshot_storage.errors import OwnerCorruptedError, StorageAccessError, StorageUnavailableError
from snapshot_storage.s3.client import Content, S3Client
from snapshot_storage.s3.layout import owner_key

log = logging.getLogger(__name__)

_CHECKSUM = "crc32c"
_OBJECT_FIELDS = {"token", "host", "folder"}
# More than the one that the object has and the one that it gets: an object that a server lost and had restored.
_TOKENS_MAX = 16


class LastOwner(NamedTuple):
    """Who took a prefix last, as the object says; without names where that is damaged."""

    folder: str
    host: str
    tag: str
    """Of the object, another one whenever somebody takes the prefix."""
    is_this_folder: bool
    """Whether this folder proves that it was the one."""
    is_damaged: bool = False


class PrefixOwner:
    """A prefix, and the folder that claims it."""

    def __init__(self, client: S3Client, bucket: str, prefix: str, file: Path) -> None:
        self._client = client
        self._key = owner_key(prefix)
        self._where = f"{bucket}/{prefix}"
        self._place = f"{client.endpoint}/{self._where}"
        self._file = file

    def check(self, *, is_read_only: bool) -> None:
        """Make sure that the prefix belongs to the folder; to write, take it where it belongs to nobody.

        Raises:
            StorageAccessError: It belongs to another folder, or the folder cannot be written.
            OwnerCorruptedError: Nobody can say, as the object or the folder's file is damaged.
            StorageUnavailableError: The server does not answer.
        """
        if is_read_only:
            self._proven()
            return
        with self._turn():
            if not self._take(self._proven()):
                raise StorageAccessError(
                    f"another folder has just taken {self._where}: "
                    "set bucketSnapshotS3Prefix to a prefix of this service's own"
                )

    def last_owner(self) -> LastOwner | None:
        """Say who took the prefix last; None where nobody has.

        Raises:
            StorageAccessError: The folder's file or the prefix cannot be read.
            StorageUnavailableError: The server does not answer.
        """
        found = self._client.read_all(self._key)
        if found is None:
            return None
        try:
            fields = self._fields_of(found)
        except OwnerCorruptedError:
            return LastOwner("", "", found.tag, is_this_folder=False, is_damaged=True)
        try:
            is_ours = self._is_ours(fields)
        except OwnerCorruptedError:
            is_ours = False
        return LastOwner(fields["folder"], fields["host"], found.tag, is_ours)

    def take_over(self, last: LastOwner) -> None:
        """Give the prefix to this folder, whoever had it: only where that one is gone for good.

        Raises:
            StorageAccessError: Somebody has taken it since, so the last owner is not the one that was looked at.
            StorageUnavailableError: The server does not answer.
        """
        with self._turn():
            found = self._client.read_all(self._key)
            if found is None or found.tag != last.tag or not self._take(found):
                raise StorageAccessError(f"{self._where} was taken a moment ago: somebody uses it")

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Keep other programs of this folder away from file and object."""
        try:
            lock = self._file.with_name(self._file.name + ".lock").open("w")
        except OSError as error:
            raise StorageUnavailableError(f"cannot lock {self._file}: {error}") from error
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _proven(self) -> Content | None:
        found = self._client.read_all(self._key)
        if found is not None and not self._is_ours(fields := self._fields_of(found)):
            raise StorageAccessError(self._refusal(fields))
        return found

    def _is_ours(self, fields: dict[str, str]) -> bool:
        return any(fields["token"] in tokens for tokens in self._tokens().values())

    def _take(self, found: Content | None) -> bool:
        """Take it from whoever has it; what is damaged proves nothing any more, and is written anew."""
        token = secrets.token_hex(16)
        # 1. The file.
        current: list[str] = []
        known: dict[str, list[str]] = {}
        with _written_anew():
            known = self._tokens()
        with _written_anew():
            current = [] if found is None else [self._fields_of(found)["token"]]
        older = [one for one in known.get(self._place, []) if one not in current]
        self._write_tokens(known | {self._place: [*older, *current, token][-_TOKENS_MAX:]})
        # 2. The object.
        body = _sealed({"token": token, "host": socket.gethostname(), "folder": str(self._file.parent.absolute())})
        if found is None:
            return self._client.create(self._key, body.encode())
        return self._client.replace(self._key, body.encode(), tag=found.tag)

    def _refusal(self, owner: dict[str, str]) -> str:
        return (
            f"{self._where} was last taken by the folder {owner.get('folder')} on {owner.get('host')}, with a token "
            f"that {self._file} does not know. If another service uses it, set bucketSnapshotS3Prefix to a prefix of "
            "this service's own: each would take the other's snapshots for garbage. If no other one does, as that "
            "one is gone for good or this folder is a restored copy of it, `postdate snapshots take-over` gives the "
            f"prefix to this folder; so does deleting the object {self._key} of the bucket"
        )

    def _tokens(self) -> dict[str, list[str]]:
        try:
            return _tokens_in(self._file.read_bytes())
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise StorageAccessError(f"{self._file} cannot be read: {error}; restore it from a copy") from error
        except ValueError as error:
            what = f"{self._file}, by which this folder proves that {self._where} is its own,"
            raise OwnerCorruptedError(self._damage(what, error)) from error

    def _fields_of(self, found: Content) -> dict[str, str]:
        try:
            return _owner_in(found.data)
        except ValueError as error:
            what = f"the object {self._key} of the bucket, which says whose {self._where} is,"
            raise OwnerCorruptedError(self._damage(what, error)) from error

    def _damage(self, what: str, error: ValueError) -> str:
        return (
            f"{what} is damaged: {error}. If no other service uses the prefix, `postdate snapshots take-over` gives "
            "it to this folder, and writes anew what is damaged; otherwise set bucketSnapshotS3Prefix to a prefix of "
            "this service's own"
        )

    def _write_tokens(self, changed: dict[str, list[str]]) -> None:
        beside = self._file.with_name(self._file.name + ".new")
        try:
            with beside.open("w") as file:
                file.write(_sealed(changed))
                file.flush()
                os.fsync(file.fileno())
            beside.replace(self._file)
            _sync_folder(self._file.parent)
        except OSError as error:
            raise StorageUnavailableError(f"cannot write {self._file}: {error}") from error


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _written_anew() -> Iterator[None]:
    try:
        yield
    except OwnerCorruptedError as error:
        log.warning("writing it anew: %s", error)


def _sealed(fields: Mapping[str, object]) -> str:
    """Return fields as JSON, with a checksum of what they say."""
    return json.dumps({**fields, _CHECKSUM: _checksum_of(fields)})


def _unsealed(data: bytes) -> dict[str, Any]:
    """Return fields, also those of before there was a checksum.

    Raises:
        ValueError: They are not what was written.
    """
    fields = json.loads(data)
    if not isinstance(fields, dict):
        raise ValueError("it has no fields")
    checksum = fields.pop(_CHECKSUM, None)
    if checksum not in (None, _checksum_of(fields)):
        raise ValueError("its checksum is wrong")
    return fields


def _owner_in(data: bytes) -> dict[str, str]:
    fields = _unsealed(data)
    # Where the name of the checksum is damaged, it seems to have none.
    if set(fields) != _OBJECT_FIELDS:
        raise ValueError("it has other fields than were written")
    return {name: str(value) for name, value in fields.items()}


def _tokens_in(data: bytes) -> dict[str, list[str]]:
    fields = _unsealed(data)
    if not all("/" in place and isinstance(tokens, list) for place, tokens in fields.items()):
        raise ValueError("it has other fields than were written")
    return fields


def _checksum_of(fields: Mapping[str, object]) -> str:
    return f"{google_crc32c.value(json.dumps(fields, sort_keys=True).encode()):08x}"
