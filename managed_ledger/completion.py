"""Calls that go on to their end when their caller is cancelled.

A change is written first and made in memory then. A caller that is cancelled in between, such as a connection that
was lost, must not leave the disk with a change that memory does not know. A call whose caller was cancelled may
fail: that is no unhandled error.
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
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(_note_end)
            raise

    return call


def _note_end(task: asyncio.Future[Result]) -> None:
    if not task.cancelled():
        task.exception()
