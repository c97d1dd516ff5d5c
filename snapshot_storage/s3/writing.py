"""One snapshot on its way to S3, piece by piece, with blocking calls.

A small snapshot is one conditional write. One that outgrows a few MiB is an upload in parts. The object begins with the
parts that are known last (metadata, and where each segment lies), and all parts but the last must have 5 MiB. So

1. the first 5 MiB of segments are held back, and the following ones are sent as parts 2, 3, ... as they come;
2. at commit the rest is sent, then part 1: header, metadata and the segments that were held back;
3. the upload is completed on the condition that there is no such object yet, which makes it visible, whole.

An upload that a crash leaves behind is never visible. A small object beside the snapshots names its key while it runs,
and `S3Snapshots` removes both at a later start.

A write whose answer was lost may have taken effect. Each writer has a nonce, which its objects carry: so it removes
only its own object, never one that another writer made under the same key.
"""

import logging
import secrets
import threading
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

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
    """Collects one snapshot. Its methods may come from different threads, and then take turns."""

    def __init__(
        self,
        client: S3Client,
        prefix: str,
        serials: Serials,
        names: SnapshotNames,
        remember: Callable[[int, ObjectHead], None],
    ) -> None:
        """Begin; `remember` is told where the entries lie once the snapshot is there."""
        self._remember = remember
        self._client = client
        self._prefix = prefix
        self._serials = serials
        self._names = names
        self._tables: list[NDArray[np.void]] = []
        self._first_part: list[bytes] = []
        self._first_part_bytes = 0
        self._part: list[bytes] = []
        self._part_bytes = 0
        self._upload: Upload | None = None
        # There may be one that no answer named: its mark stays, and a later start finds it.
        self._is_upload_unknown = False
        self._bucket_id = -1
        self._tags: list[str] = []
        self._nonce = secrets.token_hex(8)
        # A key under which there may be an object of ours whose write was not answered.
        self._unknown_key: str | None = None
        # An abort waits here until a call that was cancelled has ended in its thread.
        self._turn = threading.Lock()

    def add(self, segments: Sequence[bytes]) -> None:
        """Add the next segments."""
        with self._turn:
            self._tables.append(table_of(segments))
            for segment in segments:
                if self._first_part_bytes < PART_BYTES_MIN:
                    self._first_part.append(bytes(segment))
                    self._first_part_bytes += len(segment)
                    continue
                self._part.append(bytes(segment))
                self._part_bytes += len(segment)
                if self._part_bytes >= PART_BYTES_MIN:
                    self._send_part()

    def commit(self, metadata: bytes) -> int:
        """Make the snapshot visible and return its id."""
        with self._turn:
            table = np.concatenate([table_of([metadata]), *self._tables])
            head = encode_object_head(self._names, table)
            if self._upload is None:
                bucket_id = self._write_whole(b"".join((head, metadata, *self._first_part, *self._part)))
            else:
                bucket_id = self._complete(self._upload, b"".join((head, metadata, *self._first_part)))
            self._remember(bucket_id, ObjectHead(self._names, table, len(head)))
            return bucket_id

    def _send_part(self) -> None:
        if self._upload is None:
            self._bucket_id = self._new_id()
            self._client.create(self._mark, b"")
            key = object_key(self._prefix, self._bucket_id)
            try:
                self._upload = self._client.begin_upload(key, nonce=self._nonce)
            except StorageUnavailableError as error:
                self._is_upload_unknown = not isinstance(error, StorageBusyError)
                raise
        # 1. These parts have the numbers from 2 on.
        part, self._part, self._part_bytes = b"".join(self._part), [], 0
        self._tags.append(self._client.upload_part(self._upload, len(self._tags) + 2, part))

    @property
    def _mark(self) -> str:
        return upload_mark(self._prefix, self._bucket_id, self._nonce)

    def _complete(self, upload: Upload, first_part: bytes) -> int:
        if self._part_bytes:
            self._send_part()
        # 2. The first part follows; it was held back.
        first_tag = self._client.upload_part(upload, 1, first_part)
        # 3. Completing the upload makes the object visible.
        tags = [first_tag, *self._tags]
        if not self._is_made(upload.key, lambda: self._client.complete_upload(upload, tags)):
            raise StorageUnavailableError(f"another writer made {upload.key} first: write the snapshot again")
        try:
            self._client.delete(self._mark)
        except SnapshotStorageError as error:
            # The snapshot is there. A later start finds nothing to abort, and removes the mark.
            logger.warning("the mark of a complete upload is left: %s", error)
        return self._bucket_id

    def _write_whole(self, body: bytes) -> int:
        for _ in range(_ID_TRIES_MAX):
            bucket_id = self._new_id()
            key = object_key(self._prefix, bucket_id)
            if self._is_made(key, partial(self._client.create, key, body, nonce=self._nonce)):
                return bucket_id
        raise StorageUnavailableError("every new id was taken by another writer: write the snapshot again")

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

    def abort(self) -> None:
        """Remove the snapshot so far, also one that is committed and whose id was not returned."""
        with self._turn:
            if self._upload is not None:
                self._client.abort_upload(self._upload)
            if self._bucket_id >= 0 and not self._is_upload_unknown:
                self._client.delete(self._mark)
            if self._unknown_key is not None and self._client.has_nonce(self._unknown_key, self._nonce):
                self._client.delete(self._unknown_key)
