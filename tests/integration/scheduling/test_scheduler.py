"""The Python client of scheduled messages, over a real service and the real Pulsar client."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pulsar
import pytest

from postdate.scheduling.api import PAGE_MESSAGES
from postdate.scheduling.async_scheduler import AsyncScheduler
from postdate.scheduling.errors import ScheduleArgumentError, ScheduleRequestError, ServiceUnavailableError
from postdate.scheduling.scheduler import Scheduler
from postdate.scheduling.values import EVERYTHING, Matching
from tests.helpers.services.services import RunningService

HOUR = timedelta(hours=1)


def received(consumer: pulsar.Consumer, count: int) -> list[bytes]:
    found = []
    for _ in range(count):
        message = consumer.receive(timeout_millis=10_000)
        consumer.acknowledge(message)
        found.append(message.data())
    return found


def nothing_comes(consumer: pulsar.Consumer) -> bool:
    try:
        consumer.receive(timeout_millis=300)
    except pulsar.Timeout:
        return True
    return False


def test_a_cancelled_message_never_comes_and_the_next_one_does(scheduler: Scheduler, consumer: pulsar.Consumer) -> None:
    soon = timedelta(milliseconds=700)
    cancelled = scheduler.schedule(b"cancelled", key="anna", after=soon)
    scheduler.schedule(b"kept", key="anna", after=soon)

    outcome = scheduler.cancel(cancelled)

    assert (outcome.matched, outcome.changed, outcome.unknown) == (1, 1, 0)
    assert received(consumer, 1) == [b"kept"]
    assert nothing_comes(consumer)
    assert scheduler.cancel(cancelled).unknown == 1


def test_a_rescheduled_message_comes_once_at_its_new_time(scheduler: Scheduler, consumer: pulsar.Consumer) -> None:
    old = scheduler.schedule(b"moved", key="anna", properties={"kind": "retry"}, after=HOUR)
    at = datetime.now(UTC) + timedelta(milliseconds=500)

    outcome = scheduler.reschedule(old, at=at)

    assert outcome.changed == 1
    assert set(outcome.handles) == {old}
    message = consumer.receive(timeout_millis=10_000)
    assert datetime.now(UTC) >= at - timedelta(milliseconds=1)
    assert (message.data(), message.partition_key()) == (b"moved", "anna")
    assert message.properties()["kind"] == "retry"
    assert f"{message.message_id().ledger_id()}:{message.message_id().entry_id()}" == outcome.handles[old]
    assert nothing_comes(consumer)


def test_a_message_is_delivered_now(scheduler: Scheduler, consumer: pulsar.Consumer) -> None:
    handle = scheduler.schedule(b"now", after=HOUR)

    assert scheduler.deliver_now(handle).changed == 1

    assert received(consumer, 1) == [b"now"]


@pytest.mark.parametrize("at", [datetime(1969, 12, 31, tzinfo=UTC), datetime(1985, 1, 1, tzinfo=UTC), 10**12], ids=str)
def test_a_time_that_is_past_means_at_once(scheduler: Scheduler, consumer: pulsar.Consumer, at: datetime | int) -> None:
    scheduler.schedule(b"past", at=at)

    assert received(consumer, 1) == [b"past"]


def test_upcoming_messages_are_listed_in_order_over_pages(
    scheduler: Scheduler, schedule_many: Callable[..., None]
) -> None:
    now = datetime.now(UTC)
    # Each third one in order of time.
    numbers = [number for first in range(3) for number in range(first, 2 * PAGE_MESSAGES + 1, 3)]
    schedule_many([(b"%d" % number, now + HOUR + timedelta(seconds=number)) for number in numbers])

    found = list(scheduler.upcoming(has_payload=True))

    assert [int(one.payload or b"") for one in found] == sorted(numbers)
    limited = list(scheduler.upcoming(limit=PAGE_MESSAGES + 1))
    assert [one.handle for one in limited] == [one.handle for one in found[: PAGE_MESSAGES + 1]]


def test_upcoming_messages_are_listed_by_key_and_time(scheduler: Scheduler) -> None:
    for minutes in (5, 1, 4, 2, 3, 7, 6):
        scheduler.schedule(b"%d" % minutes, key=f"k{minutes % 2}", after=timedelta(minutes=minutes))

    found = list(scheduler.upcoming(has_payload=True))

    assert [one.payload for one in found] == [b"1", b"2", b"3", b"4", b"5", b"6", b"7"]
    assert [one.payload for one in scheduler.upcoming(Matching(key="k0"), has_payload=True)] == [b"2", b"4", b"6"]
    assert [one.handle for one in scheduler.upcoming(limit=4)] == [one.handle for one in found[:4]]
    assert scheduler.count() == 7
    assert scheduler.count(Matching(key="k1")) == 4
    assert scheduler.count(Matching(due_until=found[3].deliver_at)) == 3
    assert all(one.deliver_at.tzinfo is UTC and one.deliver_at_ms > one.publish_time_ms for one in found)


def test_many_are_changed_at_once_and_none_that_is_not_meant(scheduler: Scheduler) -> None:
    handles = [scheduler.schedule(b"x", key="anna" if n % 2 else "ben", after=HOUR) for n in range(10)]

    assert scheduler.cancel(Matching(key="anna"), is_dry_run=True).matched == 5
    assert scheduler.count() == 10
    assert scheduler.cancel(Matching(key="anna")).changed == 5
    assert scheduler.reschedule(handles[0:10:2], shift=HOUR).changed == 5
    assert scheduler.cancel(Matching(key="nobody")).changed == 0
    assert scheduler.cancel(EVERYTHING).changed == 5
    assert scheduler.count() == 0


def test_handles_outlive_the_caller_and_the_service(
    scheduler: Scheduler, postdate_service: RunningService, topic: str
) -> None:
    handle = scheduler.schedule(b"later", after=HOUR)
    scheduler.close()
    postdate_service.kill()
    postdate_service.start()

    with Scheduler(postdate_service.url, postdate_service.web_url, topic) as again:
        assert [one.handle for one in again.upcoming()] == [handle]
        assert again.cancel(handle).changed == 1


async def _steered(service: RunningService, topic: str) -> tuple[int, list[bytes | None], int]:
    async with AsyncScheduler(service.url, service.web_url, topic) as scheduler:
        handles = [await scheduler.schedule(b"%d" % n, after=HOUR) for n in range(3)]
        moved = (await scheduler.reschedule(handles[0], after=2 * HOUR)).changed
        listed = [one.payload async for one in scheduler.upcoming(has_payload=True)]
        await scheduler.deliver_now(handles[1])
        return moved, listed, (await scheduler.cancel(handles[2])).changed


def test_the_asynchronous_one_does_the_same(
    postdate_service: RunningService, topic: str, consumer: pulsar.Consumer
) -> None:
    import asyncio

    assert asyncio.run(_steered(postdate_service, topic)) == (1, [b"1", b"2", b"0"], 1)
    assert received(consumer, 1) == [b"1"]


def test_what_cannot_be_meant_is_refused_before_anything_is_sent(scheduler: Scheduler) -> None:
    with pytest.raises(ValueError, match="either at or after"):
        scheduler.schedule(b"x")
    with pytest.raises(ValueError, match="no time zone"):
        scheduler.schedule(b"x", at=datetime(2030, 1, 1))
    with pytest.raises(TypeError, match="must be bytes"):
        scheduler.schedule("x", after=HOUR)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="give EVERYTHING"):
        scheduler.cancel(Matching())
    with pytest.raises(ValueError, match="one of at, after and shift"):
        scheduler.reschedule("1:1", after=HOUR, shift=HOUR)
    with pytest.raises(TypeError, match="no timedelta"):
        scheduler.reschedule("1:1", after=3600)  # type: ignore[arg-type]
    with pytest.raises(ScheduleArgumentError, match="is no address of a service"):
        Scheduler("127.0.0.1:6650", "http://127.0.0.1:8080", "t")
    with pytest.raises(ScheduleArgumentError, match="is no topic"):
        Scheduler("pulsar://127.0.0.1:6650", "http://127.0.0.1:8080", "a/b")
    assert scheduler.count() == 0


def test_what_the_service_refuses_says_field_and_advice(scheduler: Scheduler, postdate_service: RunningService) -> None:
    handle = scheduler.schedule(b"x", after=HOUR)

    with pytest.raises(ScheduleRequestError, match="deliverAtMs is past") as refused:
        scheduler.reschedule(handle, at=1_000)
    assert (refused.value.status, refused.value.field) == (400, "deliverAtMs")
    with pytest.raises(ScheduleRequestError, match="is no message id"):
        scheduler.cancel("not-a-handle")
    elsewhere = Scheduler(postdate_service.url, postdate_service.web_url, "no-such-topic")
    with pytest.raises(ScheduleRequestError, match="There is no topic"):
        elsewhere.count()
    assert scheduler.count() == 1


def test_a_service_that_is_away_is_told_from_a_refusal() -> None:
    away = Scheduler("pulsar://127.0.0.1:1", "http://127.0.0.1:1", "t")

    with pytest.raises(ServiceUnavailableError, match="no service answers") as error:
        away.count()

    assert error.value.retriable
