"""Futures that wait for a participant's changes to be durable, one per call that waits.

Each caller gets a future of its own: a cancelled task cancels the future it waits for, and a shared one would take
every other caller with it.
"""

import asyncio

from managed_ledger.errors import LedgerError, LedgerWriteError


class Waiters:
    """Futures by the round of the committer that they wait for."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._next: list[asyncio.Future[None]] = []
        self._in_flight: list[list[asyncio.Future[None]]] = []

    def add(self, *, pending: bool) -> asyncio.Future[None]:
        """A future for the next round if something is `pending`, else for the last one in flight."""
        future: asyncio.Future[None] = self._loop.create_future()
        if pending:
            self._next.append(future)
        elif self._in_flight:
            self._in_flight[-1].append(future)
        else:
            future.set_result(None)
        return future

    def start(self) -> None:
        """The participant was put into a round."""
        self._in_flight.append(self._next)
        self._next = []

    def refuse(self, error: LedgerError) -> None:
        """Fail the futures of the next round: the participant puts nothing into it."""
        for future in self._next:
            if not future.done():
                future.set_exception(type(error)(*error.args))
        self._next = []

    def settle(self, error: LedgerWriteError | None) -> None:
        """The oldest round in flight is durable; or it failed, and everything behind it fails with it."""
        if error is None:
            for future in self._in_flight.pop(0):
                if not future.done():
                    future.set_result(None)
            return
        for waiting in (*self._in_flight, self._next):
            for future in waiting:
                if not future.done():
                    # Each its own exception: a traceback grows with every task that raises it.
                    future.set_exception(_copy_of(error))
        self._in_flight.clear()
        self._next = []


def _copy_of(error: LedgerWriteError) -> LedgerWriteError:
    copy = LedgerWriteError(*error.args)
    copy.__cause__ = error.__cause__
    return copy
