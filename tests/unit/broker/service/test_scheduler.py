"""Housekeeping runs its jobs again and again, even when they fail, and ends cleanly."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

import pytest

from postdate.broker.configuration.config import load_config
from postdate.broker.service.clock_steps import ClockWatch, steady_ms
from postdate.broker.service.scheduler import Housekeeping, Job
from tests.helpers.fakes.apscheduler_clock import apscheduler_clock
from tests.helpers.fakes.life_loop import Clock, LifeLoop, LoopExecutor

INTERVAL_S = 0.005
CLOSE_TIMEOUT_S = 20


def housekeeping_of(jobs: list[Job]) -> Housekeeping:
    """Return a schedule by a clock that makes no step."""
    return Housekeeping(jobs, ClockWatch(lambda: time.time_ns() // 1_000_000, steady_ms))


def run_until_done(work: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(20):
            await work()

    asyncio.run(limited())


def test_functions_and_coroutine_functions_have_their_turns_on_the_loop() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        turns: list[str] = []
        enough = asyncio.Event()

        def note(name: str) -> None:
            assert asyncio.get_running_loop() is loop
            turns.append(name)
            if turns.count("plain") >= 3 and turns.count("async") >= 3:
                enough.set()

        async def note_later() -> None:
            await asyncio.sleep(0)
            note("async")

        housekeeping = housekeeping_of(
            [Job("plain", INTERVAL_S, lambda: note("plain")), Job("async", INTERVAL_S, note_later)]
        )
        housekeeping.start()
        await enough.wait()
        await housekeeping.close(CLOSE_TIMEOUT_S)

        turns_at_close = len(turns)
        await asyncio.sleep(5 * INTERVAL_S)
        assert len(turns) == turns_at_close

    run_until_done(scenario)


def test_the_longest_intervals_can_be_waited_for() -> None:
    longest = {
        "keepAliveIntervalSeconds": "keep_alive_interval_s",
        "messageExpiryCheckIntervalInMinutes": "expiry_check_interval_s",
        "retentionCheckIntervalInSeconds": "retention_check_interval_s",
        "statsUpdateFrequencyInSecs": "stats_interval_s",
    }
    config = load_config(None, environment={}, overrides=[f"{key}={2**31 - 1}" for key in longest])

    begun: list[str] = []

    async def scenario() -> None:
        long_jobs = [Job(name, getattr(config, name), lambda: begun.append("long")) for name in longest.values()]
        enough = asyncio.Event()
        housekeeping = housekeeping_of([*long_jobs, Job("short", INTERVAL_S, enough.set)])
        housekeeping.start()
        # Those that wait for decades keep no other job from its turn.
        await enough.wait()
        await housekeeping.close(CLOSE_TIMEOUT_S)

    run_until_done(scenario)
    assert min(getattr(config, name) for name in longest.values()) == 2**31 - 1
    assert begun == []


def test_a_job_that_fails_has_its_next_turn(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        turns = 0
        enough = asyncio.Event()

        def fail() -> None:
            nonlocal turns
            turns += 1
            if turns == 3:
                enough.set()
            raise RuntimeError("no luck")

        housekeeping = housekeeping_of([Job("trim", INTERVAL_S, fail)])
        housekeeping.start()
        await enough.wait()
        await housekeeping.close(CLOSE_TIMEOUT_S)

    run_until_done(scenario)

    errors = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(errors) >= 3
    assert {record.getMessage() for record in errors} == {"trim failed; it is tried again in 0.005 s"}


def test_a_slow_job_leaves_out_turns_instead_of_piling_up(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        running = 0
        slow_turns = 0
        others = 0
        enough = asyncio.Event()

        async def slow() -> None:
            nonlocal running, slow_turns
            running += 1
            slow_turns += 1
            assert running == 1
            await enough.wait()
            running -= 1

        def other() -> None:
            nonlocal others
            others += 1
            if others == 10:
                enough.set()

        housekeeping = housekeeping_of([Job("slow", INTERVAL_S, slow), Job("other", INTERVAL_S, other)])
        housekeeping.start()
        await enough.wait()
        assert slow_turns == 1
        await housekeeping.close(CLOSE_TIMEOUT_S)

    run_until_done(scenario)

    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_closing_waits_for_the_job_that_runs(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        begun, may_end = asyncio.Event(), asyncio.Event()
        ended = False

        async def work() -> None:
            nonlocal ended
            begun.set()
            await may_end.wait()
            ended = True

        housekeeping = housekeeping_of([Job("work", INTERVAL_S, work)])
        housekeeping.start()
        await begun.wait()
        closing = asyncio.create_task(housekeeping.close(CLOSE_TIMEOUT_S))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not closing.done()

        may_end.set()
        await closing

        assert ended

    run_until_done(scenario)

    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_a_job_without_an_interval_has_no_turn() -> None:
    async def scenario() -> None:
        turns: list[str] = []
        enough = asyncio.Event()

        def on() -> None:
            turns.append("on")
            if len(turns) >= 3:
                enough.set()

        off = [Job(f"off {interval}", interval, lambda: turns.append("off")) for interval in (0, -1)]
        housekeeping = housekeeping_of([*off, Job("on", INTERVAL_S, on)])
        housekeeping.start()
        await enough.wait()
        await housekeeping.close(CLOSE_TIMEOUT_S)

        assert set(turns) == {"on"}

    run_until_done(scenario)


def test_a_job_that_hangs_is_cancelled_when_the_time_limit_of_the_stop_has_passed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        is_cancelled = asyncio.Event()
        hangs = asyncio.Event()

        async def hang() -> None:
            hangs.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                is_cancelled.set()
                raise

        housekeeping = housekeeping_of([Job("other", INTERVAL_S, lambda: None), Job("trim", INTERVAL_S, hang)])
        housekeeping.start()
        await hangs.wait()
        await housekeeping.close(0.01)
        await is_cancelled.wait()

    run_until_done(scenario)

    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == [
        "trim did not end in the time of the stop, and is cancelled"
    ]


HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
SINCE_1970_MS = 1_800_000_000_000


@pytest.mark.parametrize("step_ms", [30 * DAY_MS, 90 * DAY_MS, 365 * DAY_MS, SINCE_1970_MS, -HOUR_MS, -30 * DAY_MS])
def test_a_step_of_the_clock_sets_the_jobs_anew_and_moves_no_time_limit(
    caplog: pytest.LogCaptureFixture, step_ms: int
) -> None:
    """Before and after the step each job has the turns of the time that passes, and APScheduler lists no others."""
    clock = Clock()
    clock.offset_ms = -step_ms if step_ms == SINCE_1970_MS else 0
    loop = clock.loop = LifeLoop(0.0, lambda of, workers: LoopExecutor(of, workers, lambda: 0.0))
    watch = ClockWatch(clock.now_ms, lambda: round(loop.time() * 1_000))
    turns: dict[str, list[float]] = {"often": [], "rarely": [], "limit": []}

    def job(name: str, interval_s: float, *, is_time_limit: bool = False) -> Job:
        return Job(name, interval_s, lambda: turns[name].append(loop.time()), is_time_limit)

    async def story() -> None:
        housekeeping = Housekeeping([job("often", 0.5), job("rarely", 60), job("limit", 30, is_time_limit=True)], watch)
        housekeeping.start()
        await asyncio.sleep(100.2)
        clock.offset_ms += step_ms
        await asyncio.sleep(200)
        await housekeeping.close(CLOSE_TIMEOUT_S)

    caplog.set_level(logging.WARNING)
    with apscheduler_clock(clock.now_ms) as listed:
        loop.run_until_complete(story())
    loop.close()

    # The step is seen within a second, or before the next turn of a job.
    assert turns["rarely"][0] == pytest.approx(60, abs=0.01)
    assert [at for at in turns["rarely"] if at > 60.5] == pytest.approx([160.7, 220.7, 280.7], abs=0.5)
    assert len([at for at in turns["often"] if at < 100.2]) == 200
    assert len([at for at in turns["often"] if at > 100.2]) in (397, 398, 399, 400)
    assert turns["limit"] == pytest.approx([30 * number for number in range(1, 11)])
    assert listed.count < 1_300
    assert watch.steps == 1
    assert [record.getMessage().split(" by ")[0] for record in caplog.records] == [
        "the wall clock was put " + ("forward" if step_ms > 0 else "back")
    ]
