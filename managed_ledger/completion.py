"""Calls that go on to their end when their caller is cancelled.

A change is first written and then made in memory. Its caller may be cancelled in between, as a connection is that was
lost. The disk must not be left with a change that memory lacks, so the call goes on. It may still fail then: as no
caller is left, that is no unhandled error.
"""

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def completed(
    function: Callable[Parameters, Coroutine[Any, Any, Result]],
) -> Callable[Parameters, Coroutine[Any, Any, Result]]:
    """Run each call as a task of its own, which a cancelled caller leaves behind."""

    @functools.wraps(function)
    async def call(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        task = asyncio.ensure_future(function(*args, **kwargs))
        # An error of a call whose caller has gone counts as handled.
        task.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await asyncio.shield(task)

    return call
