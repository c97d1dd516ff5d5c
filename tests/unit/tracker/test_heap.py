"""When a process gives memory back."""

import asyncio
import ctypes
from pathlib import Path

import pytest

from postdate.testing import run_inline, run_virtually
from tracker.shell.heap import ROWS_FREED_MIN, TRIM_INTERVAL_S, Heap, trim_of_c_library


def test_a_heap_is_trimmed_some_time_after_much_was_freed_and_not_too_often() -> None:
    """Little is not worth it, and much at once is one time."""

    async def main() -> None:
        trimmed_s: list[float] = []
        loop = asyncio.get_running_loop()
        heap, began_s = Heap(run_inline, lambda: trimmed_s.append(loop.time())), loop.time()
        heap.note_freed(ROWS_FREED_MIN - 1)
        await asyncio.sleep(100)
        assert trimmed_s == []
        for _ in range(10):
            heap.note_freed(ROWS_FREED_MIN)
            await asyncio.sleep(0.3 * TRIM_INTERVAL_S)
        await asyncio.sleep(100)
        steps = [round((at_s - began_s - 100) / TRIM_INTERVAL_S, 3) for at_s in trimmed_s]
        assert steps == [1, 2.2, 3.4]

    run_virtually(main())


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
