"""Callbacks: the program's, whose exceptions are its own, and what stands for one of an owner that is closed."""

import asyncio
from collections.abc import Callable
from typing import TypeVarTuple, Unpack

_Arguments = TypeVarTuple("_Arguments")


def call_program(callback: Callable[[Unpack[_Arguments]], None], *arguments: *_Arguments) -> None:
    """Call a callback here and now; an exception goes to the loop's exception handler, as where the loop calls it.

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
