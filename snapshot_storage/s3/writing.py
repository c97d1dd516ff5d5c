"""One snapshot on its way to S3, with blocking calls.

A small snapshot is one conditional write. One of 10 MiB or more is an upload in parts, which is completed on the
condition that there is no such object yet; that makes it visible, whole. An upload that a crash leaves behind is never
visible. A small object beside the snapshots names its key while it runs, and `S3Snapshots` removes both at a later
start.

A write whose answer was lost may have taken effect. Each writer has a nonce, which its objects carry: so it removes
only its own object, never one that another writer made under the same key.
"""

import logging
import secrets
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from snapshot_storage.errors import (
    SnapshotStorageError,
    StorageAccessError,
    StorageBusyError,
    StorageUnavailableError,
)
from snapshot_storage.objects.format import ObjectHead, SnapshotNames, encode_object_head, table_of
from snapshot_storage.objects.keys import Serials, bucket_id_for, object_key, upload_mark
from snapshot_storage.s3.client import S3Client, Upload

logger = logging.getLogger(__name__)

PART_BYTES_MIN = 5 * 2**20
"""S3's own limit for a part that is not the last."""

# Ids collide where two writers of one subscription have the same millisecond and the same three random bits.
_ID_TRIES_MAX = 8


class S3Writing:
    """Writes one snapshot, or leaves as little of it as the server allows."""

    def __init__(self, client: S3Client, prefix: str, serials: Serials, names: SnapshotNames, *, job: str = "") -> None:
        self._client = client
        self._prefix = prefix
        self._serials = serials
        self._names = names
        self._nonce = job + secrets.token_hex(8)
        self._upload: Upload | None = None
        # The mark of an upload, once it is written.
        self._mark: str | None = None
        # A key under which there may be an object of ours whose write was not answered.
        self._unknown_key: str | None = None

    def write(self, metadata: bytes, segments: Sequence[bytes]) -> tuple[int, ObjectHead]:
        """Make the snapshot visible, and return its id and where its entries lie."""
        table = table_of([metadata, *segments])
        head = ObjectHead(self._names, table, len(encoded := encode_object_head(self._names, table)))
        pieces = (encoded, metadata, *segments)
        try:
            if head.starts()[-1] < 2 * PART_BYTES_MIN:
                return self._write_whole(b"".join(pieces)), head
            return self._write_in_parts(pieces), head
        except BaseException:
            try:
                self._remove_leftovers()
            except SnapshotStorageError as error:
                # The caller has to know the first error.
                logger.warning("a part of a snapshot could not be removed: %s", error)
            raise

    def _write_whole(self, body: bytes) -> int:
        for _ in range(_ID_TRIES_MAX):
            bucket_id = self._new_id()
            key = object_key(self._prefix, bucket_id)
            if self._is_made(key, partial(self._client.create, key, body, nonce=self._nonce)):
                return bucket_id
        raise StorageUnavailableError("every new id was taken by another writer: write the snapshot again")

    def _write_in_parts(self, pieces: Sequence[bytes]) -> int:
        bucket_id = self._new_id()
        key = object_key(self._prefix, bucket_id)
        self._mark = mark = upload_mark(self._prefix, bucket_id, self._nonce)
        self._client.create(mark, b"")
        try:
            self._upload = upload = self._client.begin_upload(key, nonce=self._nonce)
        except StorageUnavailableError as error:
            if not isinstance(error, StorageBusyError):
                # There may be an upload that no answer named: its mark stays, and a later start finds it.
                self._mark = None
            raise
        tags = [self._client.upload_part(upload, number, part) for number, part in enumerate(_parts(pieces), 1)]
        if not self._is_made(key, lambda: self._client.complete_upload(upload, tags)):
            raise StorageUnavailableError(f"another writer made {key} first: write the snapshot again")
        try:
            self._client.delete(mark)
        except SnapshotStorageError as error:
            # The snapshot is there. A later start finds nothing to abort, and removes the mark.
            logger.warning("the mark of a complete upload is left: %s", error)
        return bucket_id

    def _is_made(self, key: str, make: Callable[[], bool]) -> bool:
        """Make an object visible, and remember its key unless there certainly is none of ours."""
        self._unknown_key = key
        try:
            is_made = make()
        except (StorageBusyError, StorageAccessError):
            self._unknown_key = None
            raise
        if not is_made:
            self._unknown_key = None
        return is_made

    def _new_id(self) -> int:
        return bucket_id_for(self._names.topic_name, self._names.cursor_name, serial=self._serials.next())

    def _remove_leftovers(self) -> None:
        """Remove the upload and its mark, and an object that is there though its write was not answered."""
        if self._upload is not None:
            self._client.abort_upload(self._upload)
        if self._mark is not None:
            self._client.delete(self._mark)
        if self._unknown_key is not None and self._client.nonce_of(self._unknown_key) == self._nonce:
            self._client.delete(self._unknown_key)


def _parts(pieces: Sequence[bytes]) -> Iterator[bytes]:
    """Join bytes to parts of at least `PART_BYTES_MIN`, but for the last one."""
    part: list[bytes] = []
    part_bytes = 0
    for piece in pieces:
        part.append(piece)
        part_bytes += len(piece)
        if part_bytes >= PART_BYTES_MIN:
            yield b"".join(part)
            part, part_bytes = [], 0
    if part:
        yield b"".join(part)
