"""When a process gives memory back."""

from tracker.shell.heap import ROWS_FREED_MIN, TRIM_INTERVAL_MS, Heap, trim_of_c_library


def test_a_heap_is_trimmed_after_much_was_freed_and_not_too_often() -> None:
    """Little, or too soon, is not worth it; a clock that is put back does not hold it up."""
    heap = Heap(lambda: None)
    assert heap.take_trim(0) is None
    heap.note_freed(ROWS_FREED_MIN - 1)
    assert heap.take_trim(1_000_000) is None
    heap.note_freed(1)
    assert heap.take_trim(1_000_000) is not None
    heap.note_freed(ROWS_FREED_MIN)
    assert heap.take_trim(1_000_000 + TRIM_INTERVAL_MS - 1) is None
    assert heap.take_trim(1_000_000 + TRIM_INTERVAL_MS) is not None

    heap.note_freed(ROWS_FREED_MIN)
    assert heap.take_trim(5) is None
    assert heap.take_trim(5 + TRIM_INTERVAL_MS) is not None


def test_trimming_works_or_does_nothing() -> None:
    """On every system."""
    trim_of_c_library()()
