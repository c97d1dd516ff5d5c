"""Whose prefix it is: of one data folder, the first that wrote under it, until someone decides otherwise.

Snapshots without a name in the cursors of a folder are garbage to its service. Under a prefix that two services use,
each would take the other's for that; so would the service of a copied folder, whose original goes on. So the prefix
has an object that says who has it, with a token that the folder knows too, in a file. Each opening to write changes the
token, in this order:

1. the file gets the new token beside the old one, synced;
2. the object gets it, on the condition that it is still the one that was read.

After a crash in between, the object has one of the two tokens of the file. Of a folder and its copy, the one that is
opened first keeps the prefix, and the other is refused: its file knows no token that came later.

Left out: a copy that is opened while the original runs is noticed at the original's next start, not before.
"""

import json
import os
import secrets
import socket
from pathlib import Path
from typing import Any

from snapshot_storage.errors import StorageAccessError, StorageUnavailableError
from snapshot_storage.s3_client import Content, S3Client
from snapshot_storage.s3_layout import owner_key


class PrefixOwner:
    """A prefix, and the folder that claims it."""

    def __init__(self, client: S3Client, bucket: str, prefix: str, file: Path) -> None:
        self._client = client
        self._key = owner_key(prefix)
        self._where = f"{bucket}/{prefix}"
        self._file = file

    def check(self, *, is_read_only: bool) -> None:
        """Make sure that the prefix belongs to the folder; to write, take it where it belongs to nobody.

        Raises:
            StorageAccessError: It belongs to another folder, or the folder cannot be written.
            StorageUnavailableError: The server does not answer.
        """
        found = self._client.read_all(self._key)
        if found is not None and _token_in(found) not in self._tokens():
            raise StorageAccessError(self._refusal(found))
        if not is_read_only and not self._take(found):
            raise StorageAccessError(
                f"another service has just taken {self._where}: set bucketSnapshotS3Prefix to one of this service's own"
            )

    def _take(self, found: Content | None) -> bool:
        token = secrets.token_hex(16)
        # 1. The file.
        self._write_tokens(([] if found is None else [_token_in(found)]) + [token])
        # 2. The object.
        body = json.dumps({"token": token, "host": socket.gethostname(), "folder": str(self._file.parent.absolute())})
        if found is None:
            return self._client.create(self._key, body.encode())
        return self._client.replace(self._key, body.encode(), tag=found.tag)

    def _refusal(self, found: Content) -> str:
        owner = _fields_of(found)
        return (
            f"{self._where} belongs to another service, of the folder {owner.get('folder')} on {owner.get('host')}, "
            "whose snapshots this one would take for garbage: set bucketSnapshotS3Prefix to one of this service's own. "
            "If that service is gone for good, or this folder is a restored copy of it, delete the object "
            f"{self._key} first"
        )

    def _tokens(self) -> list[str]:
        tokens: list[str] = self._all_tokens().get(self._where, [])
        return tokens

    def _all_tokens(self) -> dict[str, Any]:
        try:
            found = json.loads(self._file.read_text())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise StorageAccessError(f"{self._file} cannot be read: {error}; restore it from a copy") from error
        return found if isinstance(found, dict) else {}

    def _write_tokens(self, tokens: list[str]) -> None:
        changed = self._all_tokens() | {self._where: tokens}
        beside = self._file.with_name(self._file.name + ".new")
        try:
            with beside.open("w") as file:
                json.dump(changed, file)
                file.flush()
                os.fsync(file.fileno())
            beside.replace(self._file)
        except OSError as error:
            raise StorageUnavailableError(f"cannot write {self._file}: {error}") from error


def _token_in(content: Content) -> str:
    return str(_fields_of(content).get("token"))


def _fields_of(content: Content) -> dict[str, Any]:
    try:
        fields = json.loads(content.data)
    except ValueError:
        return {}
    return fields if isinstance(fields, dict) else {}
