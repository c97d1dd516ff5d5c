"""A cancel by one id beside an acknowledgement: the processor time of a service, without the sockets.

    python -m benchmarks cancel_by_id [--messages 40000] [--requests 2000] [--pause-ms 0]

A service with a Key_Shared consumer runs in this process. An acknowledgement is the frame of a client, with its receipt
and a synced write. A cancel is what the web server hands on: the body of the request, the answer in JSON, and the same
synced write. They take turns, on messages in no order, so that a busy machine is as bad for the one as for the other.
With a pause, each is alone: caches are cold then, as on a service with little to do.
"""

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, Final

from aiohttp import web

from benchmarks.scheduled import SUBSCRIPTION, TOPIC, fill
from broker.admin.scheduled_routes import scheduled_routes
from broker.protocol.commands import frame
from broker.protocol.pb.pulsar_api_pb2 import BaseCommand, CommandSubscribe
from broker.service.service import Service
from broker.topics.subscription import Subscription
from broker.topics.topic_name import TopicName
from managed_ledger.position import Position
from tests.helpers.fakes.service_fakes import Peer, open_service, until

NOW_MS: Final = 1_800_000_000_000
WARM_UP: Final = 200


class CancelRequest:
    """A request of the web server as far as the handler of a cancel looks at it."""

    query_string = ""
    content_type = "application/json"
    headers: Final[dict[str, str]] = {}
    match_info: Final = dict(zip(("tenant", "namespace", "topic"), TOPIC.split("/")[2:], strict=True))

    def __init__(self, position: Position) -> None:
        self._data = json.dumps({"messageIds": [str(position)]}).encode()

    async def read(self) -> bytes:
        """Return the body."""
        return self._data


class Sides:
    """Both ways to be rid of a message.

    Args:
        service: The service.
        peer: A client with a consumer.
        subscription: Its subscription.
        positions: Messages that are scheduled.
    """

    def __init__(self, service: Service, peer: Peer, subscription: Subscription, positions: Iterator[Position]) -> None:
        routes = {(route.method, route.path): route.handler for route in scheduled_routes(service)}
        self._cancel: Any = next(one for (_, path), one in routes.items() if path.endswith("/scheduled/cancel"))
        self._peer = peer
        self._subscription = subscription
        self._positions = positions

    async def acknowledge(self, pause_s: float) -> float:
        """Acknowledge a message; return the seconds of processor time."""
        command = BaseCommand(type=BaseCommand.ACK, ack={"consumer_id": 1, "ack_type": 0, "request_id": 7})
        ledger_id, entry_id = next(self._positions)
        command.ack.message_id.add(ledgerId=ledger_id, entryId=entry_id)
        data = frame(command)
        await asyncio.sleep(pause_s)
        begin_s = time.process_time()
        self._peer.send_bytes(data)
        await self._subscription.cursor.flush()
        # The dispatcher goes on in the next turn.
        await asyncio.sleep(0)
        return time.process_time() - begin_s

    async def cancel(self, pause_s: float) -> float:
        """Cancel a message; return the seconds of processor time."""
        request = CancelRequest(next(self._positions))
        await asyncio.sleep(pause_s)
        begin_s = time.process_time()
        answer: web.Response = await self._cancel(request)
        await asyncio.sleep(0)
        taken_s = time.process_time() - begin_s
        assert answer.status == web.HTTPOk.status_code, answer.text
        return taken_s


async def measure(folder: Path, messages: int, requests: int, pause_s: float) -> None:
    """Fill a log, open a service on it, and let both take turns."""
    await fill(folder / "ledgers", messages, NOW_MS + 3_600_000)
    service = await open_service(folder)
    topic = await service.topic(TopicName.parse(TOPIC))
    peer = Peer(service)
    values = {"subType": CommandSubscribe.Key_Shared, "consumer_id": 1, "consumer_name": "c"}
    await peer.request(BaseCommand.SUBSCRIBE, "subscribe", topic=TOPIC, subscription=SUBSCRIPTION, **values)
    subscription = topic.subscriptions[SUBSCRIPTION]
    await until(lambda: (stats := subscription.stats()) is not None and stats.msg_delayed == messages)
    positions = [Position(one.ledger_id, entry) for one in topic.ledger.ledgers() for entry in range(one.entries)]
    for position in positions:
        await topic.ledger.read_each_header([position])
    Random(3).shuffle(positions)
    sides = Sides(service, peer, subscription, iter(positions))
    for _ in range(WARM_UP):
        await sides.acknowledge(0)
        await sides.cancel(0)
    acknowledged, cancelled = [], []
    for _ in range(requests):
        acknowledged.append(await sides.acknowledge(pause_s))
        cancelled.append(await sides.cancel(pause_s))
    for name, taken in (("acknowledgement", acknowledged), ("cancel by id", cancelled)):
        taken.sort()
        quarter, half = (round(1e6 * taken[len(taken) * part // 4]) for part in (1, 2))
        print(f"{name:<20}{quarter:>6} us at the first quarter, {half} at the median")
    await service.close()


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--messages", type=int, default=40_000)
    parser.add_argument("--requests", type=int, default=2_000)
    parser.add_argument("--pause-ms", type=float, default=0.0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="postdate-cancel-", ignore_cleanup_errors=True) as name:
        asyncio.run(measure(Path(name), arguments.messages, arguments.requests, arguments.pause_ms / 1_000))


if __name__ == "__main__":
    main()
