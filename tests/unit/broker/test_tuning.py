"""The settings that the service makes for its process."""

import ctypes
from pathlib import Path

import pytest

from postdate.broker.tuning import trim_of_c_library


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
