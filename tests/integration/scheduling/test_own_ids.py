"""Timers by ids of their callers' own, on a real service with its client: whatever happens, one of a timer is left."""

import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from postdate import Matching, ScheduledMessage, Scheduler, ServiceUnavailableError
from postdate.demo.process import wait_until
from tests.helpers.services.programs.clients import Clients, nothing_comes, receive_and_ack, subscribe, texts
from tests.helpers.services.services import POSTDATE, RunningService, make_service

THREADS = 4
REPLACEMENTS = 15
ORDER = Matching(id="order-17")


@pytest.fixture
def killable(tmp_path: Path) -> Iterator[RunningService]:
    """A service of this test's own."""
    service = make_service(POSTDATE, tmp_path)
    service.start(timeout_s=120)
    yield service
    service.stop()


def test_four_threads_replace_one_timer_over_a_kill_and_one_fires(killable: RunningService, topic: str) -> None:
    """A call without an answer is repeated, as often as it takes."""
    handles: dict[str, str] = {}
    halves = threading.Semaphore(0)
    clients = Clients(killable.url)
    consumer = subscribe(clients.new(), topic, subscription="workers")
    scheduler = Scheduler(killable.url, killable.web_url, topic, subscription="workers")

    def replace(thread: int) -> None:
        for number in range(REPLACEMENTS):
            payload = f"{thread}-{number}"
            while payload not in handles:
                try:
                    handle = scheduler.schedule(payload.encode(), id="order-17", after=timedelta(hours=1))
                    handles[payload] = handle
                except ServiceUnavailableError:
                    threading.Event().wait(0.05)
            if number == REPLACEMENTS // 2:
                halves.release()

    threads = [threading.Thread(target=replace, args=(thread,)) for thread in range(THREADS)]
    for thread in threads:
        thread.start()
    halves.acquire()
    killable.kill()
    killable.start(timeout_s=120)
    for thread in threads:
        thread.join()

    last = max(handles, key=lambda payload: tuple(map(int, handles[payload].split(":"))))
    assert len(handles) == THREADS * REPLACEMENTS
    assert [_told(one) for one in scheduler.upcoming(has_payload=True)] == [(handles[last], "order-17", last)]
    assert scheduler.cancel(Matching(id="order-18")).changed == 0
    assert scheduler.deliver_now(ORDER).changed == 1
    assert texts(receive_and_ack(consumer, 1)) == [last]
    assert nothing_comes(consumer)
    wait_until(lambda: scheduler.count() == 0, timeout_s=10)
    scheduler.close()
    clients.close()


def _told(one: ScheduledMessage) -> tuple[str, str | None, str]:
    assert one.payload is not None
    return one.handle, one.properties.get("postdate.id"), one.payload.decode()
