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
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy.ma  # noqa: F401 - np.unique imports it at its first call, which would hold the event loop for 13 ms
from aiohttp import web
from aiohttp.typedefs import Middleware

from postdate.broker.admin.endpoint import Elsewhere, routes_of
from postdate.broker.admin.endpoints import SERVICE_ENDPOINTS
from postdate.broker.admin.forwarding import Forwarding
from postdate.broker.admin.peers import Peers
from postdate.broker.admin.publishing_handlers import BODY_PER_MESSAGE
from postdate.broker.admin.web import start_web
from postdate.broker.admin.web_access import access_middleware
from postdate.broker.admin.web_service import Served
from postdate.broker.configuration.config import BrokerConfig
from postdate.broker.network.listening import WebAudience
from postdate.broker.ownership.owners import Owners
from postdate.broker.server.ports import NO_SOCKETS, InheritedSockets, listen_for_clients, open_tls
from postdate.broker.server.service_manager import ServiceManager
from postdate.broker.server.supervisor import Supervisor
from postdate.broker.service.bundle import TASKS_SHARE
from postdate.broker.service.clock_steps import steady_ms
from postdate.broker.service.data_place import DataPlace
from postdate.broker.service.scheduler import Housekeeping, Job
from postdate.broker.service.service import Service, public_host
from postdate.broker.topics.limits import ConnectionController
from postdate.broker.tuning import FREEZE_INTERVAL_S, TRIM_INTERVAL_S, OldObjects, trim_of_c_library

logger = logging.getLogger(__name__)

WATCH_INTERVAL_S: Final = 2
"""The interval of checks whether the log takes writes."""

SPARE_INTERVAL_S: Final = 1.0
"""The interval of looks whether a process waits to take the place of a worker that ends."""

STOP_MARGIN_S: Final = 2.0
"""What a worker may need for its stop beyond twice the time for its snapshots (docs/operations.md), before it is
killed."""

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """What a process is among the others of a service.

    Attributes:
        owners: Who has which bundle; None for one that has all.
        place: Where the bundles are; None for what the configuration names.
        sockets: The ports that are bound already.
        supervisor: The workers that this process looks after.
        secret: By which the processes of the service know each other's requests; None for one that is alone.
    """

    owners: Owners | None = None
    place: DataPlace | None = None
    sockets: InheritedSockets = NO_SOCKETS
    supervisor: Supervisor | None = None
    secret: str | None = None


def now_ms() -> int:
    """Give the wall clock in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


async def serve(
    config: BrokerConfig,
    *,
    announce: Callable[[], None],
    manager: ServiceManager | None = None,
    end: Callable[[int], object] = os._exit,
    role: Role | None = None,
) -> int:
    """Run the service until SIGTERM, SIGINT or SIGHUP.

    Args:
        config: The configuration.
        announce: Called once when clients can connect.
        manager: The supervisor of the process, None if there is none.
        end: Ends the process at once with this exit code; called where threads still wait for the snapshot storage when
            everything else is closed.
        role: What this process is among others of the service; None for one that is alone.

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
    role = role or Role()
    supervisor = role.supervisor
    tls = open_tls(config)
    service = await Service.open(config, now_ms=now_ms, owners=role.owners, place=role.place)
    stopping_at_s: float | None = None
    exit_code = 0

    async def problems() -> list[str]:
        return [*await service.problems(), *([] if supervisor is None else supervisor.problems)]

    def unready() -> str | None:
        if stop.is_set():
            return "It is stopping"
        return service.unready or (None if supervisor is None else supervisor.unready)

    try:
        # Before the first client can ask for topics of all services.
        forwarding = forwarding_of(service, role.secret)
        listeners = await listen_for_clients(service, tls, role.sockets)
        try:
            web_server = await start_web(
                config.bind_address,
                config.web_port,
                config.web_port_tls,
                tls,
                connect_timeout_s=config.limits.connect_timeout_s,
                metrics=service.metrics,
                health=lambda: {"pid": os.getpid(), "uptime_ms": steady_ms() - started_ms},
                problems=problems,
                unready=unready,
                routes=all_routes(service, forwarding),
                access=access_of(service, forwarding),
                audience=WebAudience.of(config, public_host=public_host(config)),
                admission=ConnectionController(config.limits.web_connections_max),
                inherited=role.sockets.web,
                elsewhere=forwarding,
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
            if supervisor is not None:
                jobs.append(Job("have a spare worker", SPARE_INTERVAL_S, supervisor.prepare))
            if tls is not None:
                jobs.append(Job("certificates", config.tls.refresh_interval_s, partial(asyncio.to_thread, tls.refresh)))
            housekeeping = Housekeeping(jobs, service.clock_watch)
            try:
                housekeeping.start()
                service.spawn(service.jobs.visit_unknown())
                if supervisor is not None:
                    await _unless(stop, supervisor.start())
                if not stop.is_set():
                    announce()
                    manager.note_ready()
                await stop.wait()
                stopping_at_s = loop.time()
                logger.info("stopping")
                manager.note_stopping()
            finally:
                await listeners.aclose()
                if supervisor is not None:
                    exit_code = await supervisor.stop(2 * service.close_timeout_s + STOP_MARGIN_S)
                service.jobs.stop()
                service.backups.stop()
                await housekeeping.close(TASKS_SHARE * service.close_timeout_s)
                await web_server.close()
                await forwarding.close()
        finally:
            await listeners.aclose()
    finally:
        await service.close(stopping_at_s)
    logger.info("stopped")
    exit_code = exit_code if service.failure is None else 1
    if service.is_storage_hanging:
        end(exit_code)
    return exit_code


async def _unless(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> None:
    """Wait for work, or until a stop is asked for, which cancels it."""
    tasks = [asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if tasks[0].done():
            await tasks[0]
    finally:
        for task in tasks:
            task.cancel()


def all_routes(service: Service, elsewhere: Elsewhere | None = None) -> list[web.RouteDef]:
    """Return every endpoint but health and metrics, which `start_web` adds.

    Args:
        service: Answers.
        elsewhere: The other services; None for one that is alone.
    """
    return routes_of(SERVICE_ENDPOINTS, Served(service), service.trail.record, elsewhere)


def forwarding_of(service: Service, secret: str | None = None) -> Forwarding:
    """Return what asks the other services of a cluster, for the web port and for clients of the service.

    Args:
        service: The one that asks.
        secret: Shared with the other services; None without any.
    """
    config = service.config
    bytes_max = BODY_PER_MESSAGE * config.message_size_max
    peers = Peers(config.tls, secret)
    service.topics_elsewhere = found = Forwarding(service.owners, service.ranges, peers, lines_bytes_max=bytes_max)
    return found


def access_of(service: Service, forwarding: Forwarding | None = None) -> Middleware | None:
    """Return the access middleware of the web port, None without authentication.

    Args:
        service: Whose callers are checked.
        forwarding: Knows the other services, which forward requests; None for one that is alone.
    """
    if service.authenticator is None:
        return None
    return access_middleware(
        service.authenticator,
        service.authorizer,
        now_ms=service.now_ms,
        is_metrics_authenticated=service.config.access.is_metrics_authenticated,
        role_told=(lambda _: None) if forwarding is None else forwarding.role_told,
    )
