"""The messages between the two processes, each sent by `multiprocessing.connection.Connection`."""

from typing import Any, NamedTuple


class Call(NamedTuple):
    """Call a method of the `StorageWorker`; answered by one `Answer` of the same number, unless it is cancelled."""

    number: int
    method: str
    args: tuple[Any, ...]


class Cancel(NamedTuple):
    """The caller does not wait for the call of this number any more."""

    number: int


class Answer(NamedTuple):
    """The result of the call of this number, or the error that it raised."""

    number: int
    value: Any = None
    error: Exception | None = None
