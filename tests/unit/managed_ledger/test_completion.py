"""Calls that go on when their caller is cancelled."""

import asyncio
import gc
from typing import Any

from managed_ledger.completion import completed


def test_a_call_that_was_left_behind_ends_and_may_fail_quietly() -> None:
    unhandled: list[dict[str, Any]] = []

    async def main() -> None:
        begun, may_end, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

        @completed
        async def change() -> None:
            begun.set()
            await may_end.wait()
            ended.set()
            raise OSError("seeded")

        asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
        caller = asyncio.ensure_future(change())
        await begun.wait()
        caller.cancel()
        await asyncio.wait([caller])
        assert caller.cancelled()
        await asyncio.sleep(0)
        may_end.set()
        await ended.wait()

    asyncio.run(main())
    gc.collect()
    assert unhandled == []
