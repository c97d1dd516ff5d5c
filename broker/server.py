"""The process: listen, serve until told to stop, shut down in order.

SIGTERM and SIGINT stop it: first no new connection, then nothing more from the old ones, then the indexes are sealed
where that is worth it and the folders closed. A second signal in between changes nothing; `kill -9` is always safe,
it only costs the next start some reading.
"""

import asyncio
import logging
import os
import signal
import time
from collections.abc import Callable

from broker.config import BrokerConfig
from broker.connection import Connection
from broker.metrics import render_metrics
from broker.requests import HANDLERS
from broker.scheduler import Housekeeping
from broker.service import Service
from broker.web import start_web

log = logging.getLogger(__name__)


def now_ms() -> int:
    """Give the wall clock in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


async def serve(config: BrokerConfig, *, announce: Callable[[], None]) -> int:
    """Run the service until SIGTERM or SIGINT.

    Args:
        config: The configuration.
        announce: Called once when clients can connect.

    Returns:
        The process's exit code.

    Raises:
        ServiceStartError: The data folder cannot be opened.
        OSError: A port cannot be listened on.
    """
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signal_number, stop.set)
    started_ms = now_ms()
    service = await Service.open(config, now_ms=now_ms)
    try:
        server = await loop.create_server(
            lambda: Connection(service, HANDLERS), config.bind_address, config.service_port, backlog=128
        )
        try:
            web = await start_web(
                config.bind_address,
                config.web_port,
                metrics=lambda: render_metrics(service.metrics()),
                health=lambda: {"pid": os.getpid(), "uptime_ms": now_ms() - started_ms},
            )
            housekeeping = Housekeeping(service.housekeeping())
            try:
                housekeeping.start()
                service.spawn(service.open_topics())
                announce()
                await stop.wait()
                log.info("stopping")
            finally:
                server.close()
                await housekeeping.close()
                await web.close()
        finally:
            server.close()
    finally:
        await service.close()
    log.info("stopped")
    return 0
