"""Reads that wait for a thread are made together, and each has its own answer."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from managed_ledger.reading.shared_calls import READS_A_CALL_MAX, SharedCalls


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


def test_a_call_has_a_limited_number_of_reads() -> None:
    async def scenario() -> None:
        executor = HeldExecutor()
        calls = SharedCalls(executor, 1)
        count = 1 + READS_A_CALL_MAX + 1
        reads = [asyncio.ensure_future(calls.run(partial(int, number))) for number in range(count)]
        await asyncio.sleep(0)

        for _ in range(3):
            executor.let_go()
            await asyncio.sleep(0)

        assert await asyncio.gather(*reads) == list(range(count))

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


def test_the_read_of_a_cancelled_caller_is_not_made() -> None:
    async def scenario() -> None:
        executor = HeldExecutor()
        calls = SharedCalls(executor, 1)
        made: list[int] = []
        reads = [asyncio.ensure_future(calls.run(partial(made.append, number))) for number in range(3)]
        await asyncio.sleep(0)
        reads[1].cancel()
        await asyncio.sleep(0)
        executor.let_go()
        await asyncio.sleep(0)
        executor.let_go()
        await asyncio.wait(reads)

        assert made == [0, 2]

    asyncio.run(scenario())


def test_a_read_after_the_shutdown_of_the_threads_fails() -> None:
    async def scenario() -> None:
        executor = ThreadPoolExecutor(1)
        executor.shutdown()

        with pytest.raises(RuntimeError, match="shutdown"):
            await SharedCalls(executor, 1).run(lambda: 1)

    asyncio.run(scenario())


def test_reads_run_in_the_threads_of_the_executor() -> None:
    async def scenario() -> None:
        with ThreadPoolExecutor(1, thread_name_prefix="ledger-read") as executor:
            name = await SharedCalls(executor, 1).run(lambda: threading.current_thread().name)

        assert name.startswith("ledger-read")

    asyncio.run(scenario())
