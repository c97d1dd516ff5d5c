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

Left out: a copy that is opened while the original runs is noticed at the original's next start, not before.
"""

import fcntl
import json
import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from snapshot_storage.errors import StorageAccessError, StorageUnavailableError
from snapshot_storage.s3_client import Content, S3Client
from snapshot_storage.s3_layout import owner_key

# More than the one that the object has and the one that it gets: an object that a server lost and had restored.
_TOKENS_MAX = 16


class LastOwner(NamedTuple):
    """Who took a prefix last, as the object says; empty where it does not."""

    folder: str
    host: str
    token: str
    is_this_folder: bool
    """Whether the token is one of this folder's."""


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
        fields, token = _fields_of(found), _token_in(found)
        return LastOwner(str(fields.get("folder")), str(fields.get("host")), token, self._is_ours(found))

    def take_over(self, last: LastOwner) -> None:
        """Give the prefix to this folder, whoever had it: only where that one is gone for good.

        Raises:
            StorageAccessError: Somebody has taken it since, so the last owner is not the one that was looked at.
            StorageUnavailableError: The server does not answer.
        """
        with self._turn():
            found = self._client.read_all(self._key)
            if found is None or _token_in(found) != last.token or not self._take(found):
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
        if found is not None and not self._is_ours(found):
            raise StorageAccessError(self._refusal(found))
        return found

    def _is_ours(self, found: Content) -> bool:
        return any(_token_in(found) in tokens for tokens in self._tokens().values())

    def _take(self, found: Content | None) -> bool:
        token = secrets.token_hex(16)
        # 1. The file.
        current = [] if found is None else [_token_in(found)]
        older = [one for one in self._tokens().get(self._place, []) if one not in current]
        self._write_tokens([*older, *current, token][-_TOKENS_MAX:])
        # 2. The object.
        body = json.dumps({"token": token, "host": socket.gethostname(), "folder": str(self._file.parent.absolute())})
        if found is None:
            return self._client.create(self._key, body.encode())
        return self._client.replace(self._key, body.encode(), tag=found.tag)

    def _refusal(self, found: Content) -> str:
        owner = _fields_of(found)
        return (
            f"{self._where} was last taken by the folder {owner.get('folder')} on {owner.get('host')}, with a token "
            f"that {self._file} does not know. If another service uses it, set bucketSnapshotS3Prefix to a prefix of "
            "this service's own: each would take the other's snapshots for garbage. If no other one does, as that "
            "one is gone for good or this folder is a restored copy of it, `postdate snapshots take-over` gives the "
            f"prefix to this folder; so does deleting the object {self._key} of the bucket"
        )

    def _tokens(self) -> dict[str, list[str]]:
        try:
            found = json.loads(self._file.read_text())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise StorageAccessError(f"{self._file} cannot be read: {error}; restore it from a copy") from error
        return found if isinstance(found, dict) else {}

    def _write_tokens(self, tokens: list[str]) -> None:
        changed = self._tokens() | {self._place: tokens}
        beside = self._file.with_name(self._file.name + ".new")
        try:
            with beside.open("w") as file:
                json.dump(changed, file)
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


def _token_in(content: Content) -> str:
    return str(_fields_of(content).get("token"))


def _fields_of(content: Content) -> dict[str, Any]:
    try:
        fields = json.loads(content.data)
    except ValueError:
        return {}
    return fields if isinstance(fields, dict) else {}
