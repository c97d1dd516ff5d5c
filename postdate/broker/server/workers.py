"""The processes of the workers: their ports, what each is told at its start, and what it says.

    this process ─ bind ─► the ports of all workers
          └─ start ─► worker   stdin: its order, then nothing; its end is that of this process, and so of the worker
                               stdout: its state, a line each, as a service manager hears it (`service_manager`)
                               inherited: the sockets of its ports

The sockets belong to this process and outlive a worker: its addresses stay, no other program takes them, and clients
that connect while it is being started again wait to be accepted. A port that is taken is an error
before anything is opened.
"""

import asyncio
import logging
import os
import pickle
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from managed_ledger.bundles import BundleRange
from postdate.broker.configuration.config import BrokerConfig
from postdate.broker.network.listener import bind
from postdate.broker.ownership.owners import ServiceInfo
from postdate.broker.ownership.worker_owners import spread
from postdate.broker.server.ports import InheritedSockets
from postdate.broker.server.service_manager import ServiceManager
from postdate.broker.service.service import addresses_of, public_host, service_name

logger = logging.getLogger(__name__)

LENGTH_BYTES: Final = 8
"""The number of bytes that come before an order, and tell its length."""

INTERNAL_HOST: Final = "127.0.0.1"
"""Where the web ports of workers are: for the front process alone, which forwards requests."""

_PAUSE_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class WorkerOrder:
    """What a worker is told at its start.

    Attributes:
        number: Its number, from 0.
        config: Its configuration: that of the service, with ports of its own.
        log_level: The lowest level that is logged.
        sockets: Its ports, bound.
        services: The front process and all workers.
        watchdog_s: How long the front process waits for a sign of life before it kills the worker; None for ever.
        secret: By which the processes of the service know each other's requests.
    """

    number: int
    config: BrokerConfig
    log_level: str
    sockets: InheritedSockets
    services: tuple[ServiceInfo, ...]
    watchdog_s: float | None
    secret: str


class WorkerPorts:
    """The ports of all workers, bound; `close` frees them.

    Args:
        config: The configuration of the service.

    Raises:
        ConfigError: A port cannot be had; the text names it.
    """

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self._opened: list[socket.socket] = []
        try:
            self.of_workers = [self._bound(number) for number in range(config.worker_count)]
            """The sockets of each worker."""
        except BaseException:
            self.close()
            raise

    def _bound(self, number: int) -> InheritedSockets:
        port, port_tls = worker_ports(self._config, number)
        host = self._config.bind_address
        return InheritedSockets(
            self._bind("brokerServicePort", host, port),
            self._bind("brokerServicePortTls", host, port_tls),
            self._bind("webServicePort", INTERNAL_HOST, 0),
        )

    def _bind(self, key: str, host: str, port: int | None) -> tuple[int, ...]:
        if port is None:
            return ()
        try:
            sockets = bind(host, port)
        except OSError as error:
            reason = f"port {port} of a worker cannot be had ({error.strerror or error}): each of the "
            reason += f"{self._config.worker_count} workers has one behind it, so choose another range"
            raise self._config.refusal(key, reason) from error
        self._opened += sockets
        return tuple(one.fileno() for one in sockets)

    @property
    def descriptors(self) -> list[int]:
        """The file descriptors of all sockets."""
        return [one for sockets in self.of_workers for one in sockets.all]

    def web_port(self, number: int) -> int:
        """Return the number of a worker's web port."""
        descriptor = self.of_workers[number].web[0]
        port: int = next(one for one in self._opened if one.fileno() == descriptor).getsockname()[1]
        return port

    def close(self) -> None:
        """Free the ports."""
        for one in self._opened:
            one.close()
        self._opened.clear()


def worker_ports(config: BrokerConfig, number: int) -> tuple[int | None, int | None]:
    """Return the ports of a worker for clients, without TLS and with it: the next ones behind those of the service."""
    ports = (config.service_port, config.service_port_tls)
    plain, tls = (None if port is None else port + 1 + number for port in ports)
    return plain, tls


def services_of(config: BrokerConfig, ranges: Sequence[BundleRange], ports: WorkerPorts) -> tuple[ServiceInfo, ...]:
    """Return the front process and the workers, with their bundles and addresses.

    Raises:
        ConfigError: There are more workers than bundles.
    """
    workers = config.worker_count
    if workers > len(ranges):
        has = "one bundle" if len(ranges) == 1 else f"{len(ranges)} bundles"
        advice = "take fewer workers, or divide the folder with `postdate bundles split` while no service runs"
        raise config.refusal("numberOfWorkers", f"the data folder has {has}, and each worker needs one: {advice}")
    found = [ServiceInfo(service_name(config), addresses_of(config))]
    for number, bundles in enumerate(spread(ranges, workers)):
        web_port = ports.web_port(number)
        addresses = addresses_of(worker_config(config, number, web_port))
        internal = addresses._replace(web_url=f"http://{INTERNAL_HOST}:{web_port}")
        found.append(ServiceInfo(worker_name(config, number), internal, bundles))
    return tuple(found)


def worker_name(config: BrokerConfig, number: int) -> str:
    """Return the name of a worker: host and port for clients, as its web port is another one at each start."""
    plain, tls = worker_ports(config, number)
    return f"{public_host(config)}:{plain or tls}"


def worker_config(config: BrokerConfig, number: int, web_port: int) -> BrokerConfig:
    """Return the configuration of a worker."""
    plain, tls = worker_ports(config, number)
    return replace(
        config, worker_count=1, service_port=plain, service_port_tls=tls, web_port=web_port, web_port_tls=None
    )


class ToldState(ServiceManager):
    """The front process, as the supervisor that a worker tells its state.

    Args:
        output: The file descriptor that is written to.
        watchdog_s: How long the supervisor waits for a sign of life; None for ever.
    """

    def __init__(self, output: int, *, watchdog_s: float | None) -> None:
        super().__init__(watchdog_s=watchdog_s)
        self._output = output
        self.watchdog_interval_s = 0 if watchdog_s is None else watchdog_s / 2
        # A supervisor that does not read must not hold up the event loop.
        os.set_blocking(output, False)

    def _tell(self, state: str) -> None:
        with suppress(OSError):
            os.write(self._output, f"{state}\n".encode())


class WorkerPrograms:
    """Starts the processes of workers, of which one more is always there and waits for its order.

    Python needs a second or two until it has read all modules of the service. So a process that has done so takes the
    place of a worker that ends.

    Args:
        command: The program of a worker and its arguments.
        descriptors: The sockets of all workers: a process learns only from its order whose place it takes.
        order: Gives what a worker is told, by its number.
    """

    def __init__(self, command: Sequence[str], descriptors: Sequence[int], order: Callable[[int], WorkerOrder]) -> None:
        self._command = command
        self._descriptors = descriptors
        self._order = order
        self._spare: asyncio.subprocess.Process | None = None

    async def start(self, number: int) -> "RunningWorker":
        """Start a worker.

        Raises:
            OSError: No process can be started now.
        """
        process, self._spare = self._spare, None
        if process is None or process.returncode is not None:
            process = await self._started()
        order = self._order(number)
        assert process.stdin is not None
        data = pickle.dumps(order)
        process.stdin.write(len(data).to_bytes(LENGTH_BYTES, "big") + data)
        return RunningWorker(process, order.watchdog_s)

    @property
    def spare_pid(self) -> int | None:
        """The process id of the one that waits for its order; None if there is none."""
        return None if self._spare is None else self._spare.pid

    async def prepare(self) -> None:
        """Have a process ready for the next start; nothing happens if there is one."""
        if self._spare is None or self._spare.returncode is not None:
            self._spare = await self._started()

    async def close(self) -> None:
        """End the process that is ready for the next start."""
        spare, self._spare = self._spare, None
        if spare is not None:
            with suppress(ProcessLookupError):
                spare.kill()
            await spare.wait()

    async def _started(self) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            pass_fds=self._descriptors,
            # Ctrl-C of a terminal is for the front process, which stops the workers.
            process_group=0,
            # A program finds what this one has found, wherever it runs.
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )


class RunningWorker:
    """The process of a worker.

    Args:
        process: The process, which has its order.
        watchdog_s: How long one that was ready may give no sign of life; None for ever.
    """

    def __init__(self, process: asyncio.subprocess.Process, watchdog_s: float | None) -> None:
        self._process = process
        self._watchdog_s = watchdog_s
        self._ready = asyncio.Event()
        self._reading = asyncio.get_running_loop().create_task(self._read())
        self.is_ready = False

    async def wait_ready(self) -> bool:
        """Wait until it serves its bundles, and return whether it does: it may end before."""
        await self._ready.wait()
        return self.is_ready

    async def wait(self) -> int:
        """Return its exit code when it has ended, negative for a signal."""
        exit_code = await self._process.wait()
        await self._reading
        return exit_code

    def terminate(self) -> None:
        """Tell it to stop in order; nothing happens if it has ended."""
        with suppress(ProcessLookupError):
            self._process.terminate()

    def kill(self) -> None:
        """End it at once; nothing happens if it has ended."""
        with suppress(ProcessLookupError):
            self._process.kill()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    async def _read(self) -> None:
        """Read what it says until its end; one that was ready and says nothing for too long is killed."""
        assert self._process.stdout is not None
        while True:
            try:
                line = await asyncio.wait_for(
                    self._process.stdout.readline(), self._watchdog_s if self.is_ready else None
                )
            except TimeoutError:
                logger.error("worker process %d gives no sign of life for %g s: killed", self.pid, self._watchdog_s)
                self.kill()
                self.is_ready = False
                continue
            except Exception:  # Whatever it is, such as a line without an end: the next lines count.
                logger.exception("worker process %d cannot be heard", self.pid)
                if self._process.returncode is not None:
                    self._ready.set()
                    return
                await asyncio.sleep(_PAUSE_S)
                continue
            if line == b"READY=1\n":
                self.is_ready = True
                self._ready.set()
            elif not line:
                self._ready.set()
                return
