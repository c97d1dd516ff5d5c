"""Measure the memory that closed topics leave: thousands are opened, used, closed and opened again.

    python -m benchmarks closed_topics [--topics 10000] [--rounds 5]

The service runs in this process, with a client of one connection on loopback. In each round every topic gets a
producer, a Key_Shared consumer and a delayed message; then they are closed, and the clock is put forward, so that the
service closes the topics. Resident memory (anonymous pages) is taken with all topics open and with all closed.
"""

import argparse
import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from benchmarks.many_topics import anonymous_bytes
from benchmarks.many_topics_client import ManyTopicsClient
from broker.configuration.config import BrokerConfig
from broker.event_loop import run_on_service_loop
from broker.server.ports import listen_for_clients
from broker.service.service import Service
from broker.topics.inactive import REST_AFTER_MS
from demo.process import free_ports

MIB: Final = 2**20
DAY_MS: Final = 86_400_000
SETTLE_S: Final = 2.0


class _Clock:
    """The wall clock, which can be put forward."""

    def __init__(self) -> None:
        self.ahead_ms = 0

    def __call__(self) -> int:
        return time.time_ns() // 1_000_000 + self.ahead_ms


def main() -> None:
    """Measure, and print a line for each round."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--topics", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run_on_service_loop(measure(Path(folder), arguments.topics, arguments.rounds))


async def measure(folder: Path, topics: int, rounds: int) -> None:
    """Open and close all topics in each round."""
    clock = _Clock()
    (port,) = free_ports(1)
    config = BrokerConfig(data_directory=folder, bind_address="127.0.0.1", service_port=port)
    service = await Service.open(config, now_ms=clock)
    listeners = await listen_for_clients(service, None)
    print("| round | open, MiB | closed, MiB | open again took, s |\n|---:|---:|---:|---:|")
    try:
        client = await ManyTopicsClient.connect(port)
        for number in range(1, rounds + 1):
            begin = time.monotonic()
            await client.open_topics(range(topics))
            took_s = time.monotonic() - begin
            for topic in range(topics):
                await client.send(topic, number, clock() + DAY_MS)
            await client.confirmed()
            opened = await _settled_mib()
            await client.close_topics(range(topics))
            clock.ahead_ms += REST_AFTER_MS
            await service.resting.rest_unused()
            if service.topics:
                raise RuntimeError(f"{len(service.topics)} topics are still open")
            print(f"| {number} | {opened:.1f} | {await _settled_mib():.1f} | {took_s:.1f} |")
            sys.stdout.flush()
        client.close()
    finally:
        await listeners.aclose()
        await service.close()


async def _settled_mib() -> float:
    await asyncio.sleep(SETTLE_S)
    return anonymous_bytes(os.getpid()) / MIB


if __name__ == "__main__":
    main()
