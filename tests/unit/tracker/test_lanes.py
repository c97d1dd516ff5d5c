"""When storage calls may start: what is down costs little, and what fails by itself keeps nobody waiting."""

from random import Random

from tracker.columns.row_queue import NEVER
from tracker.config import TrackerConfig
from tracker.core.circuit_breakers import FAILURES_BEFORE_PROBING, FIRST_TRY_WAIT_MS_MAX, Lane
from tracker.core.retry import Retry

CONFIG = TrackerConfig()


def lane_that_is_down(failing: list[Retry], *, calls: int, now_ms: int = 0) -> tuple[Lane, int]:
    """Return a lane of which every call failed, one after the other, and the time of the last one."""
    lane = Lane(CONFIG, Random(1), FIRST_TRY_WAIT_MS_MAX)
    for _ in range(calls):
        starts = [lane.starts_at_ms(retry) for retry in failing]
        now_ms = max(now_ms, min(starts))
        lane.started()
        lane.failed(failing[starts.index(min(starts))], now_ms)
    return lane, now_ms


def test_an_hour_of_outage_costs_a_handful_of_calls_a_minute() -> None:
    """However many buckets wait, and if each is wanted for the first time then."""
    failing = [Retry() for _ in range(300)]
    lane, now_ms = lane_that_is_down(failing, calls=20)
    calls = 0
    end_ms = now_ms + 3_600_000
    while now_ms < end_ms:
        now_ms = max(now_ms, min(lane.starts_at_ms(retry) for retry in failing))
        first = min(failing, key=lane.starts_at_ms)
        lane.started()
        lane.failed(first, now_ms)
        calls += 1

    assert calls < 60 * 9


def test_one_success_opens_the_lane() -> None:
    """For all who do not wait by themselves."""
    failing = [Retry()]
    lane, now_ms = lane_that_is_down(failing, calls=8)
    assert lane.is_probing
    lane.started()
    assert lane.starts_at_ms(Retry()) == NEVER
    assert not lane.succeeded(), "a bucket that had never failed says nothing of those that did"
    lane.started()
    assert lane.succeeded(had_failed=True)
    lane.started()
    assert not lane.succeeded(had_failed=True), "an outage ends once"

    assert lane.starts_at_ms(Retry()) <= now_ms
    assert lane.starts_at_ms(failing[0]) > now_ms


def test_who_has_failed_least_is_tried_first() -> None:
    """Two that fail for ever would have every other try otherwise, and nobody would notice that the outage is over."""
    failing = [Retry() for _ in range(10)]
    lane, now_ms = lane_that_is_down(failing[:2], calls=30)
    assert all(retry.attempts > 5 for retry in failing[:2])
    for _ in range(8):
        first = min(failing, key=lane.starts_at_ms)
        assert not first.attempts
        assert lane.starts_at_ms(first) <= now_ms + FIRST_TRY_WAIT_MS_MAX
        now_ms = max(now_ms, lane.starts_at_ms(first))
        lane.started()
        lane.failed(first, now_ms)

    assert all(retry.attempts == 1 for retry in failing[2:])


def test_what_fails_while_others_succeed_waits_by_itself() -> None:
    """It says nothing of the others, however often it fails."""
    lane = Lane(CONFIG, Random(1))
    failing = [Retry() for _ in range(FAILURES_BEFORE_PROBING - 1)]
    now_ms = 0
    for _ in range(50):
        for retry in failing:
            now_ms = max(now_ms, lane.starts_at_ms(retry))
            lane.started()
            lane.failed(retry, now_ms)
        lane.started()
        assert not lane.succeeded()
        for retry in failing:
            now_ms = max(now_ms, lane.starts_at_ms(retry))
            lane.started()
            lane.failed(retry, now_ms)
        assert lane.starts_at_ms(Retry()) <= now_ms

    assert all(retry.at_ms - now_ms <= CONFIG.retry_backoff_ms_max for retry in failing)


def test_calls_that_fail_together_say_little_more_than_one() -> None:
    """Half a minute of patience for a blink would be too much."""
    lane = Lane(CONFIG, Random(1))
    for _ in range(CONFIG.operations_in_flight_max):
        lane.started()
    for _ in range(CONFIG.operations_in_flight_max):
        lane.failed(Retry(), 1_000)

    assert lane.is_probing
    assert 1_000 < lane.starts_at_ms(Retry()) <= 1_000 + 2 * CONFIG.retry_backoff_ms_min


def test_a_clock_that_is_put_back_holds_up_no_call() -> None:
    """The wait was for a time that is far away now."""
    lane, _ = lane_that_is_down([Retry()], calls=8, now_ms=10_000_000)
    lane.forget_wait()

    assert lane.starts_at_ms(Retry()) < 1_000
