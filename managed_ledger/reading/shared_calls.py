"""Blocking reads that wait for a thread go together: handing one over takes as long as a small read itself.

While a thread is free, a read goes at once. When thousands of topics are opened, the reads of many topics are one call.
Each read has its own result or error. Belongs to one event loop.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from typing import Any, Final, TypeVar, cast

T = TypeVar("T")

READS_A_CALL_MAX: Final = 16
"""The first read of a call waits for the last: some milliseconds."""

_Asked = tuple[Callable[[], Any], "asyncio.Future[Any]"]


class SharedCalls:
    """Runs reads in an executor.

    Args:
        executor: Runs the calls.
        calls_max: How many calls run at once: the number of the executor's threads.
    """

    def __init__(self, executor: Executor, calls_max: int) -> None:
        self._executor = executor
        self._calls_max = calls_max
        self._calls = 0
        self._waiting: deque[_Asked] = deque()

    async def run(self, read: Callable[[], T]) -> T:
        """Return what a read returns; raises what it raises."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((read, answer))
        self._begin()
        return cast(T, await answer)

    def _begin(self) -> None:
        while self._waiting and self._calls < self._calls_max:
            some = [self._waiting.popleft() for _ in range(min(READS_A_CALL_MAX, len(self._waiting)))]
            # Reads of callers that were cancelled are not made.
            asked = [one for one in some if not one[1].done()]
            if not asked:
                continue
            self._calls += 1
            try:
                self._executor.submit(self._call, asyncio.get_running_loop(), asked)
            except RuntimeError as error:  # It was shut down.
                self._end(asked, [error] * len(asked))

    def _call(self, loop: asyncio.AbstractEventLoop, asked: Sequence[_Asked]) -> None:
        """Make the reads, in a thread."""
        results = [_result_of(read) for read, _ in asked]
        # Without its loop no caller waits.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(self._end, asked, results)

    def _end(self, asked: Sequence[_Asked], results: Sequence[Any]) -> None:
        self._calls -= 1
        self._begin()
        for (_, answer), result in zip(asked, results, strict=True):
            if answer.done():
                continue
            if isinstance(result, Exception):
                answer.set_exception(result)
            else:
                answer.set_result(result)


def _result_of(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except Exception as error:  # Any error of a read is the answer to its caller alone.
        return error
