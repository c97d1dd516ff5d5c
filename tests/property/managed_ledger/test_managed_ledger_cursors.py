"""Cursors against a set of positions: acknowledgements in any order, through restarts, power cuts and failures."""

import asyncio

from hypothesis import given

from tests.helpers.cursor_world import CursorWorld, steps


@given(steps)
def test_a_cursor_is_a_set_of_positions(chosen: list[tuple[str, object]]) -> None:
    """After every step, the cursor and the set say the same."""

    async def scenario() -> None:
        world = CursorWorld()
        await world.open()
        for name, argument in [("append", 20), *chosen, ("trim", None), ("flush", None), ("power cut", None)]:
            await world.step(name, argument)
            world.check()
        await world.store.close()

    asyncio.run(scenario())
