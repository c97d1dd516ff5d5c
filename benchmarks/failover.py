"""Measure failover on object storage: one of two services is killed, or stops, and its bundles are back at the other.

Two services share a prefix of a versitygw (`make s3-servers` builds it), with four bundles. A client that knows both
sends to a topic of each bundle and receives from it all the time. Each round ends one of the services, and measures
from there to these events, of the last of its bundles:

    found     a look-up at the other service answers with that one's address
    receipt   a client that begins once it is found has sent a message
    resumed   the client that was there receives messages again
"""

import argparse
import json
import os
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pulsar
from rich.console import Console

from postdate.demo.process import PostdateProcess, wait_until
from tests.helpers.services.prefix_services import opened_at, prefix_settings, topic_by_bundle
from tests.helpers.services.steady_load import SteadyLoad
from tests.helpers.storages.s3_servers import VersityServer

_TIMEOUT_S = 120.0


def _is_found(service: PostdateProcess, topic: str) -> bool:
    path = topic.replace("://", "/")
    try:
        return bool(json.loads(service.read(f"/lookup/v2/topic/{path}"))["brokerUrl"] == service.url)
    except (urllib.error.URLError, TimeoutError):
        return False


def _client(url: str) -> pulsar.Client:
    """A client whose complaints about a service that ended are not shown."""
    return pulsar.Client(url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull))


def _send_afresh(service: PostdateProcess, topics: Sequence[str]) -> None:
    client = _client(service.url)
    for topic in topics:
        client.create_producer(topic).send(b"again")
    client.close()


class Pair:
    """Two services of a prefix, with equal shares, and a load.

    Args:
        folder: For what they keep.
        server: The object storage.
        lease_s: Of their bundles.
    """

    def __init__(self, folder: Path, server: VersityServer, lease_s: int) -> None:
        self.topics = topic_by_bundle()
        lease = {"bundleLeaseSeconds": str(lease_s)}
        self.services = [
            PostdateProcess(folder / name, prefix_settings(server, "failover", folder / name / "cache") | lease)
            for name in ("a", "b")
        ]
        for one in self.services:
            one.start(timeout_s=_TIMEOUT_S, wait=False)
        self.settle()
        hosts = ",".join(one.url.removeprefix("pulsar://") for one in self.services)
        self.client = _client(f"pulsar://{hosts}")
        self.load = SteadyLoad(self.client, self.topics.values())

    def settle(self) -> None:
        """Wait until each has its share."""
        for one in self.services:
            one.wait_until_ready(timeout_s=_TIMEOUT_S)
        wait_until(lambda: all(len(opened_at(one)) == 2 for one in self.services), timeout_s=_TIMEOUT_S)

    def end_one(self, *, is_killed: bool) -> tuple[float, float, float]:
        """End the first service; returns when its bundles were found, took a message, and had one at the old client."""
        ending, other = self.services
        self.load.grows(100)
        topics = [self.topics[one] for one in opened_at(ending)]
        begun_s = time.monotonic()
        assert ending.process is not None
        (ending.process.kill if is_killed else ending.process.terminate)()
        for topic in topics:
            wait_until(lambda topic=topic: _is_found(other, topic), timeout_s=_TIMEOUT_S)  # type: ignore[misc]
        found_s = time.monotonic() - begun_s
        _send_afresh(other, topics)
        receipt_s = time.monotonic() - begun_s
        self.load.grows(20)
        resumed_s = max(self._resumed_s(topic, begun_s) for topic in topics) - begun_s
        ending.stop()
        ending.start(timeout_s=_TIMEOUT_S)
        self.settle()
        self.load.grows(100)
        self.services.reverse()
        return found_s, receipt_s, resumed_s

    def _resumed_s(self, topic: str, begun_s: float) -> float:
        """When messages arrived again, after the longest pause since a time."""
        times = [begun_s, *(at_s for _, at_s in [*self.load.streams[topic].received] if at_s > begun_s)]
        return max(pairwise(times), key=lambda pair: pair[1] - pair[0])[1]

    def close(self) -> None:
        """End the load and the services."""
        self.load.end()
        self.client.close()
        for one in self.services:
            one.stop()


def main(arguments: list[str]) -> int:
    """Measure and print a line for each round."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks failover", description=__doc__)
    parser.add_argument("--lease", type=int, default=2, help="seconds")
    parser.add_argument("--rounds", type=int, default=4, help="of each kind")
    asked = parser.parse_args(arguments)
    console = Console()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        server = VersityServer(folder / "s3")
        pair = Pair(folder, server, asked.lease)
        try:
            for number in range(2 * asked.rounds):
                is_killed = number % 2 == 0
                found_s, receipt_s, resumed_s = pair.end_one(is_killed=is_killed)
                console.print(
                    f"{'killed' if is_killed else 'stopped':>8}: found {found_s:.2f} s, receipt {receipt_s:.2f} s, "
                    f"resumed {resumed_s:.2f} s"
                )
        finally:
            pair.close()
            server.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
