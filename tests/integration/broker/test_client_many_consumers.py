"""Many consumers of one client, on its one connection, are served at once with what is not in memory."""

import asyncio
from pathlib import Path

from tests.helpers.services.programs import frames
from tests.helpers.services.programs.clients import now_ms, wait_for
from tests.helpers.services.programs.frames import RawConnection, command, raw_connection
from tests.helpers.services.services import POSTDATE, RunningService, make_service
from tests.helpers.services.topic_stats import ask_topic

SHARED, EARLIEST = 1, 1
SUBSCRIPTIONS, MESSAGES, SIZE = 16, 5, 1_000_000
"""80 MB for one client: more than its sockets hold and 32 MiB, at which the service ends a connection."""


def test_a_client_that_reads_late_stays_connected_and_gets_everything_once(tmp_path: Path, topic: str) -> None:
    # The cache has room for one message, so each subscription reads its own from the log.
    service = make_service(POSTDATE, tmp_path, {"managedLedgerCacheSizeMB": "1"})
    service.start()
    try:
        asyncio.run(_receive_late(service, topic))
    finally:
        service.stop()


async def _receive_late(service: RunningService, topic: str) -> None:
    async with raw_connection(service.port) as producer, raw_connection(service.port) as client:
        await producer.open_producer(topic)
        for number in range(MESSAGES):
            await producer.ask(frames.send({1: "p", 2: number, 3: now_ms()}, bytes(SIZE), sequence_id=number))
        for consumer in range(SUBSCRIPTIONS):
            wish = {1: topic, 2: f"s{consumer}", 3: SHARED, 4: consumer, 5: 1, 13: EARLIEST}
            assert (await client.ask(command(frames.SUBSCRIBE, wish)))[0] == frames.SUCCESS
        await client.write(b"".join(command(frames.FLOW, {1: one, 2: 100}) for one in range(SUBSCRIPTIONS)))
        await asyncio.to_thread(_wait_until_no_more_is_sent, service, topic)

        got = await _messages(client, SUBSCRIPTIONS * MESSAGES)

    assert sorted(got) == [(consumer, number) for consumer in range(SUBSCRIPTIONS) for number in range(MESSAGES)]


def _wait_until_no_more_is_sent(service: RunningService, topic: str) -> None:
    sent = [0]

    def is_all() -> bool:
        sent.append(ask_topic(service, topic, "stats")[1]["msgOutCounter"])
        return sent[-1] > 0 and len(set(sent[-5:])) == 1

    wait_for(is_all)


async def _messages(client: RawConnection, count: int) -> list[tuple[int, int]]:
    """Read messages as (consumer, entry)."""
    found: list[tuple[int, int]] = []
    while len(found) < count:
        kind, fields, _ = await client.read()
        if kind == frames.MESSAGE:
            found.append((fields[1], frames.parsed(fields[2])[2]))
    return found
