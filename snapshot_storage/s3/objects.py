"""A place of objects on S3, for checkpoints of the log (`managed_ledger.objects.object_store.ObjectStore`).

What others may write too is only ever written under a condition. A request that fails for the moment is sent again a
few times. So one that was carried out and not answered may meet its own object, which is success. And a refusal is no
proof that there is an object: a server answers so as well while another write is under way, which may come to nothing.
So after each refusal the object is read, and where there is none the request is sent again.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from snapshot_storage.backoff import Backoff
from snapshot_storage.errors import StorageBusyError, StorageUnavailableError
from snapshot_storage.s3.client import S3Client
from snapshot_storage.s3.config import S3Config
from snapshot_storage.s3.location import S3Location
from snapshot_storage.s3.requests import S3Requests

T = TypeVar("T")

_TRIES: Final = 6
_PAUSE_MS_MIN, _PAUSE_MS_MAX = 200, 5_000
_PIECE_BYTES: Final = 8 * 2**20


class S3Objects:
    """Objects under a prefix of a bucket.

    Args:
        config: Server, bucket and prefix.
        wait: Waits for so many seconds before a request is sent again; true where it is not to be.

    Raises:
        StorageAccessError: The AWS chain's own files are wrong.
    """

    def __init__(self, config: S3Config, wait: Callable[[float], bool]) -> None:
        self._client = S3Client(config)
        self._root = f"{config.prefix}/"
        self._place = S3Location(config.bucket, config.prefix).uri
        self._wait = wait

    def __str__(self) -> str:
        return self._place

    def read(self, name: str) -> tuple[bytes, str] | None:
        return self._patiently(lambda: self._client.read_tagged(self._root + name))

    def replace(self, name: str, data: bytes, tag: str | None) -> str | None:
        def once() -> str | None:
            made = self._client.replace(self._root + name, data, tag)
            if made is not None:
                return made
            found = self._client.read_tagged(self._root + name)
            if found is None and tag is None:
                raise self._under_way(name)
            return found[1] if found is not None and found[0] == data else None

        return self._patiently(once)

    def create(self, name: str, data: bytes) -> bool:
        def once() -> bool:
            if self._client.create(self._root + name, data):
                return True
            found = self._client.read_tagged(self._root + name)
            if found is None:
                raise self._under_way(name)
            return found[0] == data

        return self._patiently(once)

    def _under_way(self, name: str) -> StorageBusyError:
        return StorageBusyError(f"{self} refused to write {name}, and has none: another write was under way")

    def put_file(self, name: str, path: Path) -> None:
        def once() -> None:
            with path.open("rb") as file:
                self._client.put(self._root + name, file)

        self._patiently(once)

    def fetch_file(self, name: str, path: Path) -> bool:
        with path.open("wb") as file:
            while True:
                start = file.tell()
                piece = self._patiently(partial(self._client.read, self._root + name, start, start + _PIECE_BYTES))
                if piece is None:
                    return False
                file.write(piece.data)
                if not piece.data or file.tell() >= piece.object_bytes:
                    return True

    def names(self, prefix: str) -> Iterator[str]:
        for key in self._client.list(self._root + prefix):
            yield key.removeprefix(self._root)

    def delete(self, name: str) -> None:
        self._patiently(lambda: self._client.delete(self._root + name))

    def delete_all(self, names: Sequence[str]) -> None:
        self._patiently(lambda: self._client.delete_all([self._root + name for name in names]))

    def room_bytes(self) -> None:
        return None

    def expiring_rules(self) -> Sequence[str] | None:
        """Name the bucket's rules that would take some of these objects away; None where it does not tell."""
        found = self._patiently(self._client.expiring_rules)
        if found is None:
            return None
        return [one.name for one in found if self._root.startswith(one.prefix) or one.prefix.startswith(self._root)]

    @property
    def requests(self) -> S3Requests:
        """Counts what is asked of the server."""
        return self._client.requests

    def close(self) -> None:
        self._client.close()

    def _patiently(self, request: Callable[[], T]) -> T:
        pauses = Backoff(min_ms=_PAUSE_MS_MIN, max_ms=_PAUSE_MS_MAX)
        for _ in range(_TRIES - 1):
            try:
                return request()
            except StorageUnavailableError:
                if self._wait(pauses.next_seconds()):
                    raise
        return request()
