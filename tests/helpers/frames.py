"""Frames of the call stack, for tests that look for the caller of a patched method."""

import inspect
from types import FrameType


def frame_below(depth: int) -> FrameType:
    """Return the frame so many calls below the function that asks: 1 is its caller's."""
    frame = inspect.currentframe()
    for _ in range(depth + 1):
        assert frame is not None
        frame = frame.f_back
    assert frame is not None
    return frame
