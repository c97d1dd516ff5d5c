"""Waiting on a loop."""

import asyncio
import inspect
from collections.abc import Callable
from typing import Any


async def until(look: Callable[[], Any]) -> Any:
    """Let the loop run until `look` finds something."""
    async with asyncio.timeout(60):
        while True:
            found = look()
            if inspect.isawaitable(found):
                found = await found
            if found:
                return found
            await asyncio.sleep(0.001)
