"""The settings that the service makes for its process."""

import ctypes
import gc
from collections.abc import Iterator
from pathlib import Path
from weakref import ref

import pytest

from postdate.broker.tuning import FROZEN_COLLECTIONS_MAX, THAWED_ENDINGS_MIN, OldObjects, trim_of_c_library


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="there is no glibc")
def test_trimming_gives_back_what_is_free_below_something_in_use() -> None:
    """The C library itself gives back the end of a heap alone, so one small block at the end keeps everything."""
    blocks = [ctypes.create_string_buffer(b"x" * 2**16) for _ in range(1_000)]
    in_use = blocks[-1]
    before = resident_bytes()
    del blocks

    trim_of_c_library()()

    assert before - resident_bytes() > 500 * 2**16
    assert in_use.value == b"x" * 2**16


@pytest.mark.parametrize("lacking", [OSError, AttributeError])
def test_without_glibc_nothing_is_loaded_or_done(lacking: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def load(name: str) -> object:
        asked.append(name)
        raise lacking

    monkeypatch.setattr(ctypes, "CDLL", load)

    trim_of_c_library()()

    assert asked == ["libc.so.6"]


class Node:
    """An object that may be part of a cycle."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def thawed() -> Iterator[None]:
    """Freezing is the whole process's."""
    yield
    gc.unfreeze()


@pytest.fixture
def counted() -> Iterator[None]:
    """The middle generation is collected when the test says so."""
    thresholds = gc.get_threshold()
    gc.set_threshold(0)
    yield
    gc.set_threshold(*thresholds)


@pytest.mark.usefixtures("thawed", "counted")
def test_what_stays_is_frozen_when_no_more_comes_or_very_much_has_come() -> None:
    old = OldObjects(lambda: 0)
    frozen = []
    for collections in (0, 1, 0, 0, FROZEN_COLLECTIONS_MAX):
        gc.unfreeze()
        for _ in range(collections):
            gc.collect(1)
        old.freeze()
        # A few are frozen as Python starts.
        frozen.append(gc.get_freeze_count() > 10_000)

    assert frozen == [False, False, True, False, True]


@pytest.mark.usefixtures("thawed", "counted")
def test_garbage_is_not_frozen_and_what_became_garbage_frozen_is_found_after_many_ends() -> None:
    ended = 0
    old = OldObjects(lambda: ended)

    def freeze() -> None:
        for _ in range(FROZEN_COLLECTIONS_MAX):
            gc.collect(1)
        old.freeze()

    garbage, kept = Node(), Node()
    of_garbage, of_kept = ref(garbage), ref(kept)
    del garbage
    freeze()
    assert of_garbage() is None
    del kept
    ended = THAWED_ENDINGS_MIN - 1
    freeze()
    assert of_kept() is not None
    ended += 1
    freeze()
    assert of_kept() is None
