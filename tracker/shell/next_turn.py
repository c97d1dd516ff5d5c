"""One call in the next turn of the event loop, however often it is asked for: many changes are looked at together."""

import asyncio
from collections.abc import Callable
from typing import TypeVarTuple, Unpack

from tracker.errors import TrackerError

_Arguments = TypeVarTuple("_Arguments")


class NextTurn:
    """A call that is made once, soon, after it was asked for; it belongs to the loop that runs when it is made.

    Args:
        call: The call.

    Raises:
        TrackerError: No loop runs in this thread.
    """

    __slots__ = ("_call", "_handle", "_is_closed", "_loop")

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self._handle: asyncio.Handle | None = None
        self._is_closed = False
        self._loop = _running_loop()

    def want(self) -> None:
        """Make the call in the next turn of the loop, unless that is asked for already, or this is closed.

        Raises:
            TrackerError: The loop does not run in this thread.
        """
        if self._handle is None and not self._is_closed:
            self.check_loop()
            self._handle = self._loop.call_soon(self.run)

    def check_loop(self) -> None:
        """Check that the loop runs in this thread; after `close`, nothing is to be disturbed any more.

        Raises:
            TrackerError: It does not.
        """
        if not self._is_closed and _running_loop() is not self._loop:
            raise _wrong_loop()

    def run(self) -> None:
        """Make the call now, instead of in the next turn."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        self._call()

    def close(self) -> None:
        """Make no call any more, and refer to its owner no more: a closed one is to go without a search for cycles."""
        self._is_closed = True
        self._call = do_nothing
        if self._handle is not None:
            self._handle.cancel()


def call_program(callback: Callable[[Unpack[_Arguments]], None], *arguments: *_Arguments) -> None:
    """Call a callback of the program here and now; an exception of it goes to the loop's exception handler.

    The caller may be in the middle of several answers, or of several subscriptions, and has to go on.
    """
    try:
        callback(*arguments)
    except Exception as error:
        asyncio.get_running_loop().call_exception_handler(
            {"message": f"Exception in callback {callback!r} of a tracker", "exception": error}
        )


def do_nothing(*_: object) -> None:
    """Stand for the callback of an owner that is closed, so that it goes without a search for cycles."""


def _running_loop() -> asyncio.AbstractEventLoop:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise _wrong_loop() from None


def _wrong_loop() -> TrackerError:
    return TrackerError("a tracker is called on its own event loop alone: threads use its call_soon_threadsafe")
