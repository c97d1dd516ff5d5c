"""While a test runs, only transitions may change a tracker's state: every assignment to a field is looked at.

A field of a bucket, and of the plain records of a state, is assigned to by a transition itself. The parts that have
methods of their own (`barriers`, `loads`, ...) change themselves, but only while a transition runs.

Changes within a container, and changes by code that no test reaches, are left out: `test_transitions` reads the source.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from inspect import currentframe
from types import CodeType, FrameType
from typing import Any, Final

import pytest

from tracker.core.barriers import Barriers
from tracker.core.bucket import Bucket
from tracker.core.circuit_breakers import CallQueue, Calls, CircuitBreaker
from tracker.core.due_rows import DueRows
from tracker.core.load_queue import LoadQueue
from tracker.core.position_cache import PositionCache
from tracker.core.positions.bucket_positions import BucketPositions
from tracker.core.positions.overlapping_positions import OverlappingPositions
from tracker.core.positions.tracked_positions import TrackedPositions
from tracker.core.recovery import Recovery
from tracker.core.state import Merging, MutableBucket, OrphanSearch, Reports, TrackerState
from tracker.core.timers import Timers

_TRANSITIONS: Final = "tracker.core.transitions."
_ROOM: Final = "tracker."

RECORDS: Final = (Bucket, TrackerState, MutableBucket, Merging, OrphanSearch, Recovery, Reports)
PARTS: Final = (
    Barriers,
    BucketPositions,
    CallQueue,
    Calls,
    CircuitBreaker,
    DueRows,
    LoadQueue,
    OverlappingPositions,
    PositionCache,
    Timers,
    TrackedPositions,
)

TIDIED_BY_QUESTIONS: Final = {(TrackedPositions, "_taken"), (TrackedPositions, "_taken_count")}
"""The inside of a queue or a set may be put in order when it is looked at; its content stays the same."""


_MAY_ASSIGN: Final[dict[tuple[int, type], CodeType]] = {}
"""Code that may assign to a class, by its number. It is kept, so that no other code gets the number."""


def _check_record(self: Any, name: str, value: object) -> None:
    _check_code(currentframe().f_back, type(self), name)
    object.__setattr__(self, name, value)


def _check_part(self: Any, name: str, value: object) -> None:
    frame, kind = currentframe().f_back, type(self)
    _check_code(frame, kind, name)
    code = frame.f_code
    if (kind, name) not in TIDIED_BY_QUESTIONS and not _is_making(code, kind):
        assert _is_within_a_transition(frame), f"{code.co_name} assigns to {kind.__name__}.{name} outside a transition"
    object.__setattr__(self, name, value)


def _check_code(frame: FrameType, kind: type, name: str) -> None:
    """Let code assign that makes an object or belongs to its class, and what `_check_writer` lets.

    Each is looked at once: an assignment happens a million times in a test.
    """
    code = frame.f_code
    if (id(code), kind) in _MAY_ASSIGN:
        return
    if not _is_making(code, kind) and not (kind in PARTS and _is_method(code, kind)):
        _check_writer(frame, kind, name)
    _MAY_ASSIGN[id(code), kind] = code


def _check_writer(frame: FrameType, kind: type, name: str) -> None:
    """Let a transition assign, and code outside the tracker."""
    module = frame.f_globals["__name__"]
    assert module.startswith(_TRANSITIONS) or not module.startswith(_ROOM), (
        f"{module}.{frame.f_code.co_name} assigns to {kind.__name__}.{name}"
    )


def _is_method(code: CodeType, kind: type) -> bool:
    """Whether code is a method of a class. To ask a frame for its `self` would cost more than most tests do."""
    return code.co_qualname == f"{kind.__name__}.{code.co_name}"


def _is_making(code: CodeType, kind: type) -> bool:
    """Whether code is what makes an object, written or generated for a dataclass."""
    return code.co_name in ("__init__", "__post_init__") and (
        _is_method(code, kind) or code.co_qualname == "__create_fn__.<locals>.__init__"
    )


def _is_within_a_transition(frame: FrameType | None) -> bool:
    """Whether a transition has called this, or no code of the tracker has, but a test of one part."""
    is_within_tracker = False
    while frame is not None:
        module = frame.f_globals["__name__"]
        if module.startswith(_TRANSITIONS):
            return True
        is_within_tracker = is_within_tracker or module in ("tracker.core.questions", "tracker.core.tracker_core")
        frame = frame.f_back
    return not is_within_tracker


@contextmanager
def one_writer() -> Iterator[None]:
    """Let every assignment to a tracker's state that no transition makes raise `AssertionError`."""
    with pytest.MonkeyPatch.context() as patch:
        for record in RECORDS:
            patch.setattr(record, "__setattr__", _check_record, raising=False)
        for part in PARTS:
            patch.setattr(part, "__setattr__", _check_part, raising=False)
        yield


@pytest.fixture(autouse=True, scope="module")
def only_transitions_write() -> Iterator[None]:
    """Hold all tests of a folder to it whose `conftest` imports this name."""
    with one_writer():
        yield
