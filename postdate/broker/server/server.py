"""The process: listen, serve until told to stop, shut down in order.

SIGTERM, SIGINT and SIGHUP stop it: first no new connection, then nothing more from the old ones, then the indexes are
sealed where that is worth it and the folders closed. A second signal in between changes nothing; `kill -9` is always
safe, it only costs the next start some reading. SIGHUP comes when the terminal is closed. Nothing is read again at it:
files of TLS are looked at by themselves, and a configuration holds from one start to the next.

A full disk does not stop the process: new messages are refused until there is room. A log that refuses writes for
another reason, also after it was opened again, stops the process with a non-zero exit code for its supervisor. A stop
that cannot write the last acknowledgements has that exit code too.
"""

import asyncio
import logging
import os
import signal
import time
from collections.abc import Callable
from functools import partial
from typing import Final

import numpy.ma  # noqa: F401 - np.unique imports it at its first call, which would hold the event loop for 13 ms
from aiohttp import web
from aiohttp.typedefs import Middleware

from postdate.broker.admin.endpoint import routes_of
from postdate.broker.admin.endpoints import SERVICE_ENDPOINTS
from postdate.broker.admin.web import start_web
from postdate.broker.admin.web_access import access_middleware
from postdate.broker.admin.web_service import Served
from postdate.broker.configuration.config import BrokerConfig
from postdate.broker.network.listening import WebAudience
from postdate.broker.server.ports import listen_for_clients, open_tls
from postdate.broker.server.service_manager import ServiceManager
from postdate.broker.service.clock_steps import steady_ms
from postdate.broker.service.scheduler import Housekeeping, Job
from postdate.broker.service.service import TASKS_SHARE, Service
from postdate.broker.topics.limits import ConnectionController
from postdate.broker.tuning import FREEZE_INTERVAL_S, TRIM_INTERVAL_S, OldObjects, trim_of_c_library

logger = logging.getLogger(__name__)

WATCH_INTERVAL_S: Final = 2
"""The interval of checks whether the log takes writes."""

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def now_ms() -> int:
    """Give the wall clock in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


async def serve(
    config: BrokerConfig,
    *,
    announce: Callable[[], None],
    manager: ServiceManager | None = None,
    end: Callable[[int], object] = os._exit,
) -> int:
    """Run the service until SIGTERM, SIGINT or SIGHUP.

    Args:
        config: The configuration.
        announce: Called once when clients can connect.
        manager: The supervisor of the process, None if there is none.
        end: Ends the process at once with this exit code; called where threads still wait for the snapshot storage when
            everything else is closed.

    Returns:
        The process's exit code: 0, or 1 when it stopped because nothing could be stored any more, or could not store
        at its end what was left (if it closes at all).

    Raises:
        ServiceStartError: The data folder cannot be opened.
        ConfigError: A file that a key names cannot be used, such as a certificate or a key that checks tokens.
        OSError: A port cannot be listened on.
    """
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for signal_number in STOP_SIGNALS:
        # `nohup` starts a process with SIGHUP ignored, which is to outlive its terminal.
        if signal_number != signal.SIGHUP or signal.getsignal(signal_number) is not signal.SIG_IGN:
            loop.add_signal_handler(signal_number, stop.set)
    started_ms = steady_ms()
    manager = manager or ServiceManager()
    tls = open_tls(config)
    service = await Service.open(config, now_ms=now_ms)
    stopping_at_s: float | None = None
    try:
        listeners = await listen_for_clients(service, tls)
        try:
            web_server = await start_web(
                config.bind_address,
                config.web_port,
                config.web_port_tls,
                tls,
                connect_timeout_s=config.limits.connect_timeout_s,
                metrics=service.metrics,
                health=lambda: {"pid": os.getpid(), "uptime_ms": steady_ms() - started_ms},
                problems=service.problems,
                unready=lambda: "It is stopping" if stop.is_set() else service.unready,
                routes=all_routes(service),
                access=access_of(service),
                audience=WebAudience.of(config, public_host=service.public_host),
                admission=ConnectionController(config.limits.web_connections_max),
            )

            def watch_store() -> None:
                if service.failure is not None:
                    logger.critical("stopping, as nothing can be stored: %s", service.failure)
                    stop.set()

            jobs = [*service.housekeeping(), Job("watch the store", WATCH_INTERVAL_S, watch_store)]
            trim = partial(asyncio.to_thread, trim_of_c_library())
            jobs.append(Job("give memory back", TRIM_INTERVAL_S, trim))
            old_objects = OldObjects(lambda: service.ended_total + service.topics.ended_total)
            jobs.append(Job("spare old objects", FREEZE_INTERVAL_S, old_objects.freeze))
            jobs.append(Job("watchdog", manager.watchdog_interval_s, manager.note_alive, is_time_limit=True))
            if tls is not None:
                jobs.append(Job("certificates", config.tls.refresh_interval_s, partial(asyncio.to_thread, tls.refresh)))
            housekeeping = Housekeeping(jobs, service.clock_watch)
            try:
                housekeeping.start()
                service.spawn(service.jobs.visit_unknown())
                announce()
                manager.note_ready()
                await stop.wait()
                stopping_at_s = loop.time()
                logger.info("stopping")
                manager.note_stopping()
            finally:
                await listeners.aclose()
                service.jobs.stop()
                service.backups.stop()
                await housekeeping.close(TASKS_SHARE * service.close_timeout_s)
                await web_server.close()
        finally:
            await listeners.aclose()
    finally:
        await service.close(stopping_at_s)
    logger.info("stopped")
    exit_code = 0 if service.failure is None else 1
    if service.is_storage_hanging:
        end(exit_code)
    return exit_code


def all_routes(service: Service) -> list[web.RouteDef]:
    """Return every endpoint but health and metrics, which `start_web` adds."""
    return routes_of(SERVICE_ENDPOINTS, Served(service), service.trail.record)


def access_of(service: Service) -> Middleware | None:
    """Return the access middleware of the web port, None without authentication."""
    if service.authenticator is None:
        return None
    return access_middleware(
        service.authenticator,
        service.authorizer,
        now_ms=service.now_ms,
        is_metrics_authenticated=service.config.access.is_metrics_authenticated,
    )
