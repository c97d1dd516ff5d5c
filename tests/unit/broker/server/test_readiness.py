"""`/readyz` of a whole service in this process: it is ready once clients can connect, and not while it stops."""

import asyncio
import os
import signal
from pathlib import Path

import aiohttp

from postdate.broker.configuration.config import BrokerConfig
from postdate.broker.server.server import serve
from postdate.broker.server.service_manager import ServiceManager
from postdate.demo.process import free_ports


class _Asking(ServiceManager):
    """Asks in the turn of its watchdog, stops the service, and asks again: a stop waits for a turn that runs."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.watchdog_interval_s = 0.01
        self.answers: list[tuple[int, str]] = []
        self.stopping = asyncio.Event()
        self._url = url

    def note_stopping(self) -> None:
        self.stopping.set()

    async def note_alive(self) -> None:  # type: ignore[override]
        # One connection for both: a stop takes no new ones.
        async with aiohttp.ClientSession() as session:
            for _ in range(2):
                async with session.get(self._url) as reply:
                    self.answers.append((reply.status, await reply.text()))
                os.kill(os.getpid(), signal.SIGTERM)
                await self.stopping.wait()


def test_a_service_is_ready_until_it_stops(tmp_path: Path) -> None:
    port, web_port = free_ports(2)
    config = BrokerConfig(data_directory=tmp_path, service_port=port, web_port=web_port)

    async def run() -> list[tuple[int, str]]:
        manager = _Asking(f"http://127.0.0.1:{web_port}/readyz")
        assert await serve(config, announce=lambda: None, manager=manager) == 0
        return manager.answers

    assert asyncio.run(run()) == [(200, "ok"), (503, "It is stopping")]
