"""The service on several processors: this process is the front of its workers, or one of them.

    front    look-ups, the web port for all; no bundles, and the supervisor of the workers
    worker   its bundles, clients on a port of its own, and a web port for the front alone

The front's end is the end of all: a worker whose front is gone ends at once, so that it holds no bundle that the next
front's workers open.
"""

import os
import pickle
import secrets
import sys
import threading
from collections.abc import Callable, Sequence
from typing import BinaryIO, Final

from managed_ledger.errors import LedgerError
from postdate.broker.configuration.config import BrokerConfig
from postdate.broker.errors import ServiceStartError
from postdate.broker.ownership.worker_owners import WorkerOwners
from postdate.broker.server.server import Role, serve
from postdate.broker.server.service_manager import ServiceManager
from postdate.broker.server.supervisor import Supervisor
from postdate.broker.server.workers import (
    LENGTH_BYTES,
    ToldState,
    WorkerOrder,
    WorkerPorts,
    WorkerPrograms,
    services_of,
    worker_config,
    worker_name,
)
from postdate.broker.service.folder_place import FolderPlace
from postdate.broker.service.service import service_name

BUNDLES_OF_WORKERS: Final = 4
"""How many bundles a new data folder of workers has at least, so that more workers can share it later."""

WATCHDOG_S: Final = 60.0
"""After how long without a sign of life a worker is killed and started again, where no service manager says it."""

_FRONT_GONE: Final = 1


async def serve_with_workers(
    config: BrokerConfig,
    *,
    command: Sequence[str],
    log_level: str,
    announce: Callable[[], None],
    manager: ServiceManager | None = None,
) -> int:
    """Run the front and its workers until SIGTERM, SIGINT or SIGHUP; see `server.serve`.

    Args:
        config: The configuration.
        command: The program of a worker and its arguments, which calls `run_worker`.
        log_level: The lowest level that workers log.
        announce: Called once when all bundles are served, or all but those of workers that fail.
        manager: The supervisor of this process, None if there is none.

    Returns:
        The exit code: 0, or 1 when a worker could not store at its end what was left.

    Raises:
        ServiceStartError: The data folder cannot be opened, or no worker could be started.
        ConfigError: A port of a worker is taken, there are more workers than bundles, or a file cannot be used.
        OSError: A port of the front cannot be listened on.
    """
    manager = manager or ServiceManager()
    watchdog_s = 2 * manager.watchdog_interval_s or WATCHDOG_S
    ports = WorkerPorts(config)
    secret = secrets.token_urlsafe()
    try:
        place = await _place_of(config)
        services = services_of(config, place.ranges, ports)

        def order(number: int) -> WorkerOrder:
            own = worker_config(config, number, ports.web_port(number))
            return WorkerOrder(number, own, log_level, ports.of_workers[number], services, watchdog_s, secret)

        programs = WorkerPrograms(command, ports.descriptors, order)
        names = [f"worker {number} ({worker_name(config, number)})" for number in range(config.worker_count)]
        role = Role(
            owners=WorkerOwners(services, service_name(config)),
            place=place,
            supervisor=Supervisor(names, programs),
            secret=secret,
        )
        return await serve(config, announce=announce, manager=manager, role=role)
    finally:
        ports.close()


async def _place_of(config: BrokerConfig) -> FolderPlace:
    try:
        return await FolderPlace.open(config, default_count=max(BUNDLES_OF_WORKERS, config.worker_count))
    except (LedgerError, OSError) as error:
        raise ServiceStartError(f"The data folder {config.data_directory} cannot be opened: {error}") from error


def read_order(source: BinaryIO) -> WorkerOrder | None:
    """Read what a worker is told at its start; None if the front has ended before it needed this process."""
    length = int.from_bytes(source.read(LENGTH_BYTES), "big")
    data = source.read(length)
    if not length or len(data) < length:
        return None
    # Of the process that has started this one, over a pipe that nobody else has.
    order: WorkerOrder = pickle.loads(data)
    return order


def end_with_front(source: int, end: Callable[[int], object] = os._exit) -> None:
    """End this process at once when the front ends, however that is.

    Args:
        source: The file descriptor of the order; its end is the front's.
        end: Ends the process with this exit code.
    """

    def wait() -> None:
        # Python's own readers have a lock, which the end of an orderly process could not have.
        os.read(source, 1)
        end(_FRONT_GONE)

    threading.Thread(target=wait, name="end with the front", daemon=True).start()


async def run_worker(order: WorkerOrder) -> int:
    """Serve the bundles of a worker until SIGTERM; returns and raises as `server.serve` does."""
    own = order.services[1 + order.number]
    role = Role(owners=WorkerOwners(order.services, own.name), sockets=order.sockets, secret=order.secret)
    manager = ToldState(sys.stdout.fileno(), watchdog_s=order.watchdog_s)
    return await serve(order.config, announce=lambda: None, manager=manager, role=role)
