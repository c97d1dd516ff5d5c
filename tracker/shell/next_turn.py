"""One call in the next turn of the event loop, however often it is asked for: many changes are looked at together."""

import asyncio
from collections.abc import Callable


class NextTurn:
    """A call that is made once, soon, after it was asked for.

    Args:
        call: The call.
    """

    __slots__ = ("_call", "_handle", "_is_closed")

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self._handle: asyncio.Handle | None = None
        self._is_closed = False

    def want(self) -> None:
        """Make the call in the next turn of the running loop, unless that is asked for already, or this is closed."""
        if self._handle is None and not self._is_closed:
            self._handle = asyncio.get_running_loop().call_soon(self.run)

    def run(self) -> None:
        """Make the call now, instead of in the next turn."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        self._call()

    def close(self) -> None:
        """Make no call any more, and refer to its owner no more: a closed one is to go without a search for cycles."""
        self._is_closed = True
        self._call = _nothing
        if self._handle is not None:
            self._handle.cancel()


def _nothing() -> None:
    """Stand for the call of an owner that is closed."""
