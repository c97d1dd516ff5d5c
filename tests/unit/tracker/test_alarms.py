"""One timer for many trackers: each is called at its time, also when the wall clock is stepped."""

import asyncio
import gc
from itertools import pairwise

from tracker.shell.alarms import CALLED_A_TURN_MAX, TIMER_MS_MAX, Alarm, Alarms


class _Loop(asyncio.SelectorEventLoop):
    """Time passes by itself as soon as nothing else is to be done; the wall clock can be stepped."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1_000.0
        self.wall_ms = 1_800_000_000_000
        self.timers_set = 0

    def time(self) -> float:
        return self.now_s

    def call_at(self, when, callback, *args, context=None):  # type: ignore[no-untyped-def]
        self.timers_set += 1
        return super().call_at(when, callback, *args, context=context)

    async def pass_ms(self, ms: int) -> None:
        end_s = self.now_s + ms / 1_000
        while self.now_s < end_s:
            self.now_s = round(self.now_s + 0.001, 3)
            self.wall_ms += 1
            await asyncio.sleep(0)
            await asyncio.sleep(0)


def _play(story) -> _Loop:  # type: ignore[no-untyped-def]
    loop = _Loop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(story(loop, Alarms(lambda: loop.wall_ms)))
    return loop


def test_each_alarm_is_told_once_at_its_time() -> None:
    async def story(loop: _Loop, alarms: Alarms) -> None:
        told = []
        for after_ms in (300, 100, 200, 100):
            alarms.set(loop.wall_ms + after_ms, lambda ms=after_ms: told.append(ms))  # type: ignore[misc]
        await loop.pass_ms(99)
        assert told == []
        await loop.pass_ms(2)
        assert told == [100, 100]
        await loop.pass_ms(1_000)
        assert told == [100, 100, 200, 300]
        assert len(alarms) == 0

    _play(story)


def test_a_cancelled_alarm_is_not_told_and_not_kept() -> None:
    async def story(loop: _Loop, alarms: Alarms) -> None:
        told: list[str] = []
        kept = alarms.set(loop.wall_ms + 50, lambda: told.append("kept"))
        for _ in range(10_000):
            alarms.cancel(alarms.set(loop.wall_ms + 3_600_000, lambda: told.append("cancelled")))
        assert len(alarms) == 1
        assert sum(isinstance(one, Alarm) for one in gc.get_objects()) < 1_000
        await loop.pass_ms(60)
        assert told == ["kept"]
        alarms.cancel(kept)
        assert len(alarms) == 0

    _play(story)


def test_alarms_of_one_time_are_told_few_at_a_turn_and_in_order() -> None:
    """Ten thousand topics whose messages come due at one instant hold up no other task for long."""

    async def story(loop: _Loop, alarms: Alarms) -> None:
        told: list[int] = []
        for number in range(3 * CALLED_A_TURN_MAX):
            alarms.set(loop.wall_ms + 50, lambda number=number: told.append(number))  # type: ignore[misc]
        cancelled = alarms.set(loop.wall_ms + 50, lambda: told.append(-1))
        loop.now_s, loop.wall_ms = loop.now_s + 0.05, loop.wall_ms + 50
        counts = []
        for _ in range(8):
            await asyncio.sleep(0)
            counts.append(len(told))
            if told:
                alarms.cancel(cancelled)
        assert max(after - before for before, after in pairwise(counts)) == CALLED_A_TURN_MAX
        assert told == list(range(3 * CALLED_A_TURN_MAX))
        assert len(alarms) == 0

    _play(story)


def test_after_a_step_of_the_clock_each_alarm_is_told_once_few_at_a_turn() -> None:
    async def story(loop: _Loop, alarms: Alarms) -> None:
        told: list[int] = []
        set_alarms = [
            alarms.set(loop.wall_ms + 3_600_000 + number, lambda number=number: told.append(number))  # type: ignore[misc]
            for number in range(5 * CALLED_A_TURN_MAX)
        ]
        await loop.pass_ms(10)
        loop.wall_ms -= 60_000
        loop.now_s += TIMER_MS_MAX / 1_000
        for _ in range(2):
            await asyncio.sleep(0)
        assert len(told) == CALLED_A_TURN_MAX
        alarms.cancel(set_alarms[-1])
        alarms.set(loop.wall_ms, lambda: told.append(-1))
        for _ in range(20):
            await asyncio.sleep(0)
        assert sorted(told) == list(range(-1, len(set_alarms) - 1))
        assert len(alarms) == 0

    _play(story)


def test_many_alarms_of_tomorrow_set_one_timer_in_five_seconds() -> None:
    async def story(loop: _Loop, alarms: Alarms) -> None:
        for _ in range(10_000):
            alarms.set(loop.wall_ms + 86_400_000, lambda: None)
        await loop.pass_ms(2 * TIMER_MS_MAX)

    assert _play(story).timers_set <= 4


def test_a_step_of_the_clock_is_noticed_within_five_seconds() -> None:
    async def story(loop: _Loop, alarms: Alarms) -> None:
        told = []
        alarms.set(loop.wall_ms + 3_600_000, lambda: told.append("forward"))
        loop.wall_ms += 3_600_000
        await loop.pass_ms(TIMER_MS_MAX + 1)
        assert told == ["forward"]

        # An alarm is called after its clock was put back; its owner looks at the time again.
        alarms.set(loop.wall_ms + 10_000, lambda: told.append("back"))
        loop.wall_ms -= 3_600_000
        await loop.pass_ms(TIMER_MS_MAX + 1)
        assert told == ["forward", "back"]

    _play(story)


def test_an_alarm_that_is_set_after_a_step_of_the_clock_is_on_time() -> None:
    async def story(loop: _Loop, alarms: Alarms) -> None:
        told: list[str] = []
        alarms.set(loop.wall_ms + 3_600_000, lambda: None)
        loop.wall_ms += 1_800_000
        alarms.set(loop.wall_ms + 10, lambda: told.append("soon"))
        await loop.pass_ms(12)
        assert told == ["soon"]

    _play(story)


def test_alarms_of_an_event_loop_that_has_ended_keep_none_of_the_next_one_from_being_told() -> None:
    """A program that was interrupted closes nothing, and its factory may be used by the next event loop."""
    told: list[str] = []
    first, second = _Loop(), _Loop()
    alarms = Alarms(lambda: second.wall_ms)

    async def be_interrupted() -> None:
        alarms.set(second.wall_ms + 100, lambda: told.append("of the first"))

    async def go_on() -> None:
        second.now_s = first.now_s + 60
        alarms.set(second.wall_ms + 100, lambda: told.append("of the second"))
        await second.pass_ms(200)

    for loop, story in ((first, be_interrupted), (second, go_on)):
        with asyncio.Runner(loop_factory=lambda loop=loop: loop) as runner:  # type: ignore[misc]
            runner.run(story())

    assert told == ["of the second"]
    assert len(alarms) == 0
