"""The messages between the two processes, each sent by `multiprocessing.connection.Connection`."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Call:
    """Call a method of the `StorageWorker`; answered by one `Answer` of the same number, unless it is cancelled."""

    number: int
    method: str
    args: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Cancel:
    """The caller does not wait for the call of this number any more."""

    number: int


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of the call of this number, or the error that it raised."""

    number: int
    value: Any = None
    error: Exception | None = None
