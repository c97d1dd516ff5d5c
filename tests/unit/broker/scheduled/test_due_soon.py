"""How much comes due within a minute, an hour and a day: over HTTP for all topics, and in the metrics of each."""

import json
from pathlib import Path
from typing import Any

import aiohttp

from postdate.broker.admin.topic_stats import topic_stats
from postdate.broker.admin.web import start_web
from postdate.broker.protocol.pb.pulsar_api_pb2 import BaseCommand
from postdate.broker.server.server import all_routes
from postdate.broker.service.service import Service
from postdate.broker.service.topic_lives import REST_AFTER_MS
from postdate.broker.topics.closed_topics import ClosedSubscription
from postdate.broker.topics.pause import PauseState
from postdate.testing import FakeClock
from tests.helpers.scheduled_topic import no_metrics
from tests.helpers.service_lives import HOUR_MS, NAME, play, subscribe
from tests.helpers.until import until

MINUTE_MS, DAY_MS = 60_000, 24 * HOUR_MS
SPANS = ("minute", "hour", "day")


async def publish(service: Service, clock: FakeClock, *after_ms: int) -> None:
    topic = await service.topics.get_or_create(NAME)
    for one in after_ms:
        await topic.ledger.append(b"x", publish_time_ms=clock(), deliver_at_ms=clock() + one)


async def totals(service: Service) -> dict[str, Any]:
    server = await start_web("127.0.0.1", 0, metrics=no_metrics, health=dict, routes=all_routes(service))
    try:
        async with aiohttp.request("GET", f"http://127.0.0.1:{server.port}/postdate/v1/totals") as reply:
            return dict(await reply.json())
    finally:
        await server.close()


async def numbers(service: Service) -> list[int]:
    """Return what is delayed, overdue, and due within a minute, an hour and a day; metrics say the same."""
    found = await totals(service)
    text = b"".join([chunk async for chunk in service.metrics()]).decode()
    metrics = {line.partition("{")[0]: float(line.rpartition(" ")[2]) for line in text.splitlines() if "{" in line}
    assert metrics["postdate_overdue"] == found["overdue"]
    for span in SPANS:
        assert metrics[f"postdate_due_within_{span}"] == found[f"dueWithin{span.capitalize()}"]
    assert (found["topics"], found["unknown"]) == (1, 0)
    return [found[one] for one in ("delayed", "overdue", *(f"dueWithin{span.capitalize()}" for span in SPANS))]


def test_each_message_is_counted_once_and_anew_when_a_count_changes_by_itself(tmp_path: Path) -> None:
    async def story(service: Service, clock: FakeClock) -> None:
        await subscribe(service)
        await subscribe(service, name="other")
        await publish(service, clock, 0, MINUTE_MS, MINUTE_MS + 1, HOUR_MS, HOUR_MS + 1, DAY_MS, DAY_MS + 1, 9 * DAY_MS)
        assert await numbers(service) == [7, 1, 1, 3, 5]

        # Without a change of the log or of a cursor.
        clock.now_ms += 1
        assert await numbers(service) == [7, 1, 2, 4, 6]
        clock.now_ms += MINUTE_MS
        assert await numbers(service) == [5, 3, 0, 2, 4]
        clock.now_ms += 9 * DAY_MS
        assert await numbers(service) == [0, 8, 0, 0, 0]

        topic = service.topics[NAME]
        last = topic.ledger.last_confirmed_position
        topic.subscriptions["other"].skip(last)
        assert await numbers(service) == [0, 8, 0, 0, 0]
        topic.subscriptions["s"].skip(last)
        assert await numbers(service) == [0, 0, 0, 0, 0]

    play(tmp_path, story)


def test_the_subscription_that_alone_waited_for_some_leaves_the_others(tmp_path: Path) -> None:
    async def story(service: Service, clock: FakeClock) -> None:
        await subscribe(service)
        await subscribe(service, name="other")
        await publish(service, clock, MINUTE_MS, HOUR_MS)
        topic = service.topics[NAME]
        subscriptions = topic.subscriptions
        first, last = topic.ledger.first_position, topic.ledger.last_confirmed_position
        subscriptions["s"].cancel([first])
        subscriptions["other"].cancel([last])
        assert await numbers(service) == [2, 0, 1, 2, 2]

        subscriptions["s"].cancel([last])

        assert await numbers(service) == [1, 0, 1, 1, 1]

    play(tmp_path, story)


def test_a_closed_topic_is_estimated_by_its_first_and_last_times(tmp_path: Path) -> None:
    async def before(service: Service, clock: FakeClock) -> None:
        await subscribe(service)
        await publish(service, clock, *(hours * HOUR_MS for hours in range(1, 102)))

    async def after(service: Service, clock: FakeClock) -> None:
        assert NAME not in service.topics
        assert (await totals(service))["estimated"] == 1
        assert await numbers(service) == [101, 0, 0, 1, 23]
        clock.now_ms += 60 * HOUR_MS
        # One is overdue at least, and 41 hours are left of all.
        assert await numbers(service) == [100, 1, 1, 2, 58]
        clock.now_ms += 30 * HOUR_MS
        assert await numbers(service) == [100, 1, 1, 9, 100]
        clock.now_ms += 11 * HOUR_MS
        assert await numbers(service) == [0, 101, 0, 0, 0]
        assert (await totals(service))["estimated"] == 0

    play(tmp_path, before, after)


def test_a_topic_that_cannot_be_counted_is_told_apart(tmp_path: Path) -> None:
    """After a kill in its first life there are no numbers of it."""

    async def story(service: Service, clock: FakeClock) -> None:
        await subscribe(service)
        await publish(service, clock, HOUR_MS)
        clock.now_ms += REST_AFTER_MS
        await service.topics.close(service.topics[NAME])
        await service.topics.lives_of(NAME).numbers.remove(NAME)

        found = await totals(service)

        assert (found["topics"], found["unknown"], found["delayed"]) == (1, 1, 0)

    play(tmp_path, story)


async def since(service: Service) -> list[float | None]:
    """Return since when, in milliseconds, a subscription is paused, is overdue, and a consumer acknowledges nothing."""
    await service.jobs.count_delayed()
    text = b"".join([chunk async for chunk in service.metrics()]).decode()
    found = {line.partition("{")[0]: float(line.rpartition(" ")[2]) for line in text.splitlines() if "{" in line}
    names = [f"postdate_subscription_{one}_since_timestamp_seconds" for one in ("paused", "overdue", "unacknowledged")]
    return [round(found[name] * 1_000) if name in found else None for name in names]


def test_metrics_say_since_when_a_subscription_is_paused_is_overdue_and_is_held_by_a_consumer(tmp_path: Path) -> None:
    async def story(service: Service, clock: FakeClock) -> None:
        peer = await subscribe(service)
        begin_ms = clock.now_ms

        async def of_consumer() -> int:
            """Return what the stats of the topic say, and so the page."""
            (of_subscription,) = (await topic_stats(service.topics[NAME], {}))["subscriptions"].values()
            return int(of_subscription["consumers"][0]["holdingSinceTimestamp"])

        await publish(service, clock, 0, 0, 0, HOUR_MS)
        assert await of_consumer() == 0
        assert await since(service) == [None, begin_ms, None]

        # It is given two, of which it acknowledges one, and then none.
        clock.now_ms += MINUTE_MS
        peer.send(BaseCommand(type=BaseCommand.FLOW, flow={"consumer_id": 1, "messagePermits": 2}))
        await until(lambda: sum(one.type == BaseCommand.MESSAGE for one in peer.answers()) == 2)
        assert await since(service) == [None, begin_ms, begin_ms + MINUTE_MS]
        clock.now_ms += MINUTE_MS
        topic = service.topics[NAME]
        first = topic.ledger.first_position
        for entry_id, held_since in ((0, begin_ms + 2 * MINUTE_MS), (1, None)):
            ids = [{"ledgerId": first.ledger_id, "entryId": entry_id}]
            peer.send(BaseCommand(type=BaseCommand.ACK, ack={"consumer_id": 1, "ack_type": 0, "message_id": ids}))
            await until(lambda left=3 - entry_id: topic.subscriptions["s"].cursor.backlog == left)
            assert await since(service) == [None, begin_ms, held_since]
            assert await of_consumer() == (held_since or 0)

        await topic.subscriptions["s"].set_pause(PauseState(paused_since_ms=clock.now_ms))
        assert await since(service) == [clock.now_ms, begin_ms, None]
        clock.now_ms += DAY_MS
        await service.topics.close(topic)
        assert await since(service) == [clock.now_ms - DAY_MS, None, None]

    play(tmp_path, story)


def test_a_pause_that_an_earlier_version_noted_with_a_closed_topic_has_no_time() -> None:
    earlier = ClosedSubscription(*json.loads('["s", 3, 0, 3, 0, 0, true]')).figures(1)

    assert (earlier.is_paused, earlier.paused_since_ms, earlier.held_by_pause) == (True, None, 3)
