"""Reads that wait for a thread are made together, and each has its own answer."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from managed_ledger.reading.shared_calls import SharedCalls


class HeldExecutor(Executor):
    """Keeps calls until they are let go."""

    def __init__(self) -> None:
        self.held: list[Callable[[], Any]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        self.held.append(lambda: fn(*args, **kwargs))
        return Future()

    def let_go(self) -> None:
        self.held.pop(0)()


def _fail() -> int:
    raise ValueError("this one is damaged")


def test_reads_that_come_while_all_threads_are_busy_are_one_call() -> None:
    async def scenario() -> None:
        executor = HeldExecutor()
        calls = SharedCalls(executor, 1)
        reads = [asyncio.ensure_future(calls.run(partial(int, number))) for number in range(4)]
        await asyncio.sleep(0)

        executor.let_go()
        await asyncio.sleep(0)
        executor.let_go()

        assert await asyncio.gather(*reads) == [0, 1, 2, 3]
        assert not executor.held

    asyncio.run(scenario())


def test_an_error_is_the_answer_to_its_own_read_alone() -> None:
    async def scenario() -> None:
        executor = HeldExecutor()
        calls = SharedCalls(executor, 1)
        reads = [asyncio.ensure_future(calls.run(read)) for read in (lambda: 1, _fail, lambda: 2)]
        await asyncio.sleep(0)
        executor.let_go()
        await asyncio.sleep(0)
        executor.let_go()

        assert await reads[0] == 1
        with pytest.raises(ValueError, match="this one is damaged"):
            await reads[1]
        assert await reads[2] == 2

    asyncio.run(scenario())


def test_a_read_after_the_shutdown_of_the_threads_fails() -> None:
    async def scenario() -> None:
        executor = ThreadPoolExecutor(1)
        executor.shutdown()

        with pytest.raises(RuntimeError, match="shutdown"):
            await SharedCalls(executor, 1).run(lambda: 1)

    asyncio.run(scenario())
