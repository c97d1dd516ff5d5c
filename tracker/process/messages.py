"""What the two processes say to each other: calls of methods, each with a number, and their answers."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

STORAGE: Final = 0
"""The target of calls to the storage."""
WORKER: Final = 1
"""The target of calls to the `StorageWorker`."""
WRITERS_FROM: Final = 2
"""The first target that is a writer of one snapshot; whoever asks for a writer says what number it has."""
NO_CALL: Final = -1
"""The number of a message that is about no call."""


@dataclass(frozen=True, slots=True)
class Opening:
    """The first message: how the storage is made, and what is worth logging."""

    make_storage: bytes
    """A pickled function, so that one that cannot be imported there is an error like any other."""
    log_level: int


@dataclass(frozen=True, slots=True)
class Call:
    """Call a method; answered by one `Answer` of the same number, unless it is cancelled before."""

    target: int
    method: str
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    makes: int | None = None
    """What the method returns stays there as this target, until it is aborted."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """Nobody waits for the call of this number any more."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the call of this number returned, or the error that it raised."""

    value: Any = None
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class Logged:
    """A line for the log of the process that people look at."""

    record: logging.LogRecord
