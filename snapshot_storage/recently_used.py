"""A cache of the values that were used last, up to a number of bytes: for what a storage remembers of its snapshots."""

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

_Value = TypeVar("_Value")


class RecentlyUsed(Generic[_Value]):
    """A bounded dictionary by bucket id, for any thread; the least recently used goes first."""

    def __init__(self, bytes_max: int, size_bytes: Callable[[_Value], int]) -> None:
        self._bytes_max = bytes_max
        self._size_bytes = size_bytes
        self._bytes = 0
        self._values: OrderedDict[int, _Value] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, bucket_id: int) -> _Value | None:
        """Return the remembered value of a snapshot."""
        with self._lock:
            if bucket_id in self._values:
                self._values.move_to_end(bucket_id)
            return self._values.get(bucket_id)

    def put(self, bucket_id: int, value: _Value) -> None:
        """Remember a value, and forget the least recently used beyond the limit."""
        with self._lock:
            self._drop(bucket_id)
            self._values[bucket_id] = value
            self._bytes += self._size_bytes(value)
            while self._bytes > self._bytes_max:
                self._drop(next(iter(self._values)))

    def drop(self, bucket_id: int) -> None:
        """Forget a snapshot."""
        with self._lock:
            self._drop(bucket_id)

    def _drop(self, bucket_id: int) -> None:
        value = self._values.pop(bucket_id, None)
        if value is not None:
            self._bytes -= self._size_bytes(value)
