"""Circuit breakers decide when storage calls may start.

A storage that is down costs little. An object that fails alone keeps no other call waiting.
"""

import tracemalloc
from random import Random

from snapshot_storage.bucket_key import LedgerRange
from tracker.columns.row_order import NEVER
from tracker.config import TrackerConfig
from tracker.core.attempts import Attempts
from tracker.core.bucket import Bucket, BucketState
from tracker.core.circuit_breakers import FAILURES_BEFORE_OPENING, FIRST_TRY_WAIT_MS_MAX, CallQueue, CircuitBreaker
from tracker.core.timers import AT_ONCE, Timers, Why
from tracker.core.transitions.table import put_off

CONFIG = TrackerConfig()


def _fail(breaker: CircuitBreaker, failing: list[Attempts], place: int, now_ms: int) -> None:
    """Let one of some calls fail, as the answer to it does."""
    breaker.failed(failing[place], now_ms)
    failing[place] = put_off(failing[place], breaker, now_ms)


def breaker_of_what_is_down(failing: list[Attempts], *, calls: int, now_ms: int = 0) -> tuple[CircuitBreaker, int]:
    """Return a breaker of which every call failed, one after the other, and the time of the last one."""
    breaker = CircuitBreaker(CONFIG, Random(1), FIRST_TRY_WAIT_MS_MAX)
    for _ in range(calls):
        starts = [breaker.starts_at_ms(attempts) for attempts in failing]
        now_ms = max(now_ms, min(starts))
        breaker.started()
        _fail(breaker, failing, starts.index(min(starts)), now_ms)
    return breaker, now_ms


def test_an_hour_of_outage_costs_a_handful_of_calls_a_minute() -> None:
    """However many buckets wait, and if each is wanted for the first time then."""
    failing = [Attempts() for _ in range(300)]
    breaker, now_ms = breaker_of_what_is_down(failing, calls=20)
    calls = 0
    end_ms = now_ms + 3_600_000
    while now_ms < end_ms:
        now_ms = max(now_ms, min(breaker.starts_at_ms(attempts) for attempts in failing))
        first = min(range(len(failing)), key=lambda place: breaker.starts_at_ms(failing[place]))
        breaker.started()
        _fail(breaker, failing, first, now_ms)
        calls += 1

    assert calls < 60 * 9


def test_one_success_closes_the_breaker() -> None:
    """Calls then start at once, except those that wait for their own next attempt."""
    failing = [Attempts()]
    breaker, now_ms = breaker_of_what_is_down(failing, calls=8)
    assert breaker.is_open
    breaker.started()
    assert breaker.starts_at_ms(Attempts()) == NEVER
    assert not breaker.succeeded(), "a bucket that had never failed says nothing of those that did"
    breaker.started()
    assert breaker.succeeded(had_failed=True)
    breaker.started()
    assert not breaker.succeeded(had_failed=True), "an outage ends once"

    assert breaker.starts_at_ms(Attempts()) <= now_ms
    assert breaker.starts_at_ms(failing[0]) > now_ms


def test_who_has_failed_least_is_tried_first() -> None:
    """Otherwise two calls that always fail would have every second try, and the end of the outage would be missed."""
    failing = [Attempts() for _ in range(2)]
    breaker, now_ms = breaker_of_what_is_down(failing, calls=30)
    assert all(attempts.failures > 5 for attempts in failing)
    failing += [Attempts() for _ in range(8)]
    for _ in range(8):
        first = min(range(len(failing)), key=lambda place: breaker.starts_at_ms(failing[place]))
        assert not failing[first].failures
        assert breaker.starts_at_ms(failing[first]) <= now_ms + FIRST_TRY_WAIT_MS_MAX
        now_ms = max(now_ms, breaker.starts_at_ms(failing[first]))
        breaker.started()
        _fail(breaker, failing, first, now_ms)

    assert all(attempts.failures == 1 for attempts in failing[2:])


def test_what_fails_while_others_succeed_waits_by_itself() -> None:
    """It says nothing of the others, however often it fails."""
    breaker = CircuitBreaker(CONFIG, Random(1))
    failing = [Attempts() for _ in range(FAILURES_BEFORE_OPENING - 1)]
    now_ms = 0
    for _ in range(50):
        for place, attempts in enumerate(failing):
            now_ms = max(now_ms, breaker.starts_at_ms(attempts))
            breaker.started()
            _fail(breaker, failing, place, now_ms)
        breaker.started()
        assert not breaker.succeeded()
        for place, attempts in enumerate(failing):
            now_ms = max(now_ms, breaker.starts_at_ms(attempts))
            breaker.started()
            _fail(breaker, failing, place, now_ms)
        assert breaker.starts_at_ms(Attempts()) <= now_ms

    assert all(attempts.at_ms - now_ms <= CONFIG.retry_backoff_ms_max for attempts in failing)


def test_calls_that_fail_together_say_little_more_than_one() -> None:
    """Half a minute of patience for a blink would be too much."""
    breaker = CircuitBreaker(CONFIG, Random(1))
    for _ in range(CONFIG.operations_in_flight_max):
        breaker.started()
    for _ in range(CONFIG.operations_in_flight_max):
        _fail(breaker, [Attempts()], 0, 1_000)

    assert breaker.is_open
    assert 1_000 < breaker.starts_at_ms(Attempts()) <= 1_000 + 2 * CONFIG.retry_backoff_ms_min


def test_a_clock_that_is_put_back_holds_up_no_call() -> None:
    """The wait was for a time that is far away now."""
    breaker, _ = breaker_of_what_is_down([Attempts()], calls=8, now_ms=10_000_000)
    breaker.forget_wait()

    assert breaker.starts_at_ms(Attempts()) < 1_000


def test_a_clock_that_is_put_back_again_and_again_fills_no_memory() -> None:
    """A thousand buckets wait for a storage that is down."""
    timers = Timers()
    queue = CallQueue(CircuitBreaker(CONFIG, Random(1)), timers, Why.METADATA)
    buckets = {
        serial: Bucket(serial, LedgerRange(serial, serial), "", BucketState.RECOVERING) for serial in range(1_000)
    }
    for bucket in buckets.values():
        queue.join(bucket)
    for serial in range(500):
        buckets[serial].work_attempts = Attempts(failures=1, at_ms=10_000_000)
        queue.again(buckets[serial])

    tracemalloc.start()
    try:
        for _ in range(100):
            queue.forget_waits()
        grown_bytes = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()

    # An entry takes 56 bytes or more.
    assert grown_bytes < 100 * 1_000
    assert timers.when(Why.METADATA) == AT_ONCE
    queue.check(buckets)
