"""Ports, addresses and processes of workers; the programs here are a few lines in place of a service."""

import asyncio
import os
import pickle
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from managed_ledger.bundles import even_ranges
from postdate.broker.configuration.config import BrokerConfig, ConfigError, load_config
from postdate.broker.network.listener import Port, listen
from postdate.broker.server import worker_start
from postdate.broker.server.ports import NO_SOCKETS
from postdate.broker.server.server import Role
from postdate.broker.server.workers import (
    ToldState,
    WorkerOrder,
    WorkerPorts,
    WorkerPrograms,
    services_of,
    worker_config,
)
from postdate.demo.process import free_ports, wait_until
from tests.helpers.event_loops import on_a_loop

_SERVES = """
import os, sys, time
from postdate.broker.server.worker_start import end_with_front, read_order
order = read_order(sys.stdin.buffer)
if order is None:
    sys.exit()
end_with_front(0)
print("READY=1", flush=True)
time.sleep({lasts})
"""


@pytest.fixture
def config() -> BrokerConfig:
    """Two workers on ports that are free now."""
    while True:
        port, web_port = free_ports(2)
        try:
            config = BrokerConfig(service_port=port, web_port=web_port, worker_count=2)
            WorkerPorts(config).close()
        except (ConfigError, ValueError):
            continue
        return config


@pytest.fixture
def ports(config: BrokerConfig) -> Iterator[WorkerPorts]:
    """Their sockets."""
    opened = WorkerPorts(config)
    yield opened
    opened.close()


def _order(config: BrokerConfig, ports: WorkerPorts, *, watchdog_s: float | None = None) -> WorkerOrder:
    services = services_of(config, even_ranges(4), ports)
    own = worker_config(config, 1, ports.web_port(1))
    return WorkerOrder(1, own, "info", ports.of_workers[1], services, watchdog_s, "s3cret")


def _programs(order: WorkerOrder, program: str) -> WorkerPrograms:
    return WorkerPrograms([sys.executable, "-c", program], order.sockets.all, lambda number: order)


def test_the_front_has_no_bundles_and_workers_have_them_in_turn(config: BrokerConfig, ports: WorkerPorts) -> None:
    front, *workers = services_of(config, even_ranges(5), ports)
    port = config.service_port
    assert port is not None

    assert front.bundles == ()
    assert front.addresses.service_url == f"pulsar://127.0.0.1:{port}"
    assert [one.bundles for one in workers] == [even_ranges(5)[::2], even_ranges(5)[1::2]]
    assert [one.name for one in workers] == [f"127.0.0.1:{port + 1}", f"127.0.0.1:{port + 2}"]
    assert [one.addresses.service_url for one in workers] == [f"pulsar://{one.name}" for one in workers]
    assert [one.addresses.web_url for one in workers] == [
        f"http://127.0.0.1:{ports.web_port(number)}" for number in range(2)
    ]


def test_more_workers_than_bundles_are_refused(config: BrokerConfig, ports: WorkerPorts) -> None:
    with pytest.raises(ConfigError, match=r"has one bundle, and each worker needs one: .*postdate bundles split"):
        services_of(config, even_ranges(1), ports)


def test_a_port_that_is_taken_is_named(config: BrokerConfig) -> None:
    assert config.service_port is not None
    port = config.service_port + 2
    with (
        socket.create_server(("127.0.0.1", port)),
        pytest.raises(ConfigError, match=f"port {port} of a worker cannot be had") as caught,
    ):
        WorkerPorts(config)
    assert "brokerServicePort" in str(caught.value)
    # What was bound before it is free again.
    WorkerPorts(config).close()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("numberOfWorkers=0", "from 1 to 256"),
        ("numberOfWorkers=257", "from 1 to 256"),
        ("brokerServicePort=65535", "a port with one behind it for each of numberOfWorkers"),
        ("webServicePort=6652", "no port of numberOfWorkers: 6651 to 6652, behind brokerServicePort"),
    ],
)
def test_a_number_or_a_port_that_cannot_be_is_refused(given: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_config(None, environment={}, overrides=["numberOfWorkers=2", given])


@on_a_loop
async def test_a_connection_waits_for_a_worker_that_is_not_there_yet(ports: WorkerPorts, config: BrokerConfig) -> None:
    assert config.service_port is not None
    with ExitStack() as opened:
        client = opened.enter_context(socket.create_connection(("127.0.0.1", config.service_port + 1), timeout=5))
        client.sendall(b"hello")
        accepted: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        class Taking(asyncio.Protocol):
            def data_received(self, data: bytes) -> None:
                accepted.set_result(data)

        port = Port(host="", number=0, factory=Taking, handshake_timeout_s=1, inherited=ports.of_workers[0].clients)
        for _ in range(2):
            # Closing it, as the end of a worker does, leaves the port.
            listener = await listen(port)
            assert listener.number == config.service_port + 1
            assert await asyncio.wait_for(accepted, 5) == b"hello"
            await listener.close()
            accepted = asyncio.get_running_loop().create_future()
            client = opened.enter_context(socket.create_connection(("127.0.0.1", config.service_port + 1), timeout=5))
            client.sendall(b"hello")


@on_a_loop
async def test_a_worker_reads_its_order_and_says_that_it_is_ready(config: BrokerConfig, ports: WorkerPorts) -> None:
    programs = _programs(_order(config, ports), _SERVES.format(lasts=60))
    worker = await programs.start(1)

    assert await worker.wait_ready()
    worker.terminate()
    assert await worker.wait() == -signal.SIGTERM


@on_a_loop
async def test_a_worker_that_ends_before_it_is_ready_says_nothing(config: BrokerConfig, ports: WorkerPorts) -> None:
    worker = await _programs(_order(config, ports), "raise SystemExit(2)").start(1)

    assert not await worker.wait_ready()
    assert await worker.wait() == 2


@on_a_loop
async def test_a_worker_without_a_sign_of_life_is_killed(config: BrokerConfig, ports: WorkerPorts) -> None:
    worker = await _programs(_order(config, ports, watchdog_s=0.3), _SERVES.format(lasts=60)).start(1)
    assert await worker.wait_ready()

    assert await asyncio.wait_for(worker.wait(), 60) == -signal.SIGKILL


@on_a_loop
async def test_a_line_without_an_end_does_not_end_the_watch(config: BrokerConfig, ports: WorkerPorts) -> None:
    program = "print('x' * 200_000, flush=True); " + _SERVES.format(lasts=60)
    worker = await _programs(_order(config, ports), program).start(1)

    assert await asyncio.wait_for(worker.wait_ready(), 60)
    worker.kill()
    assert await worker.wait() == -signal.SIGKILL


@on_a_loop
async def test_a_worker_is_watched_without_a_service_manager(
    tmp_path: Path, config: BrokerConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders: list[WorkerOrder] = []

    def programs(command: Sequence[str], descriptors: Sequence[int], order: Callable[[int], WorkerOrder]) -> None:
        orders.append(order(0))

    async def serve(config: BrokerConfig, *, role: Role, **values: object) -> int:
        assert role.place is not None
        await role.place.close()
        return 0

    monkeypatch.setattr(worker_start, "WorkerPrograms", programs)
    monkeypatch.setattr(worker_start, "serve", serve)
    own = replace(config, data_directory=tmp_path / "data")
    await worker_start.serve_with_workers(own, command=[], log_level="info", announce=lambda: None)
    assert [one.watchdog_s for one in orders] == [worker_start.WATCHDOG_S]


@on_a_loop
async def test_a_spare_takes_the_place_of_the_next_worker(config: BrokerConfig, ports: WorkerPorts) -> None:
    programs = _programs(_order(config, ports), _SERVES.format(lasts=60))
    await programs.prepare()
    spare = programs.spare_pid
    await programs.prepare()
    assert programs.spare_pid == spare

    worker = await programs.start(1)
    assert worker.pid == spare
    assert programs.spare_pid is None
    assert await worker.wait_ready()
    worker.kill()
    await worker.wait()


@on_a_loop
async def test_a_spare_that_has_ended_takes_no_place(config: BrokerConfig, ports: WorkerPorts) -> None:
    programs = _programs(_order(config, ports), _SERVES.format(lasts=60))
    await programs.prepare()
    spare = programs.spare_pid
    assert spare is not None
    os.kill(spare, signal.SIGKILL)
    await asyncio.to_thread(wait_until, lambda: not _runs(spare), timeout_s=5)
    await asyncio.sleep(0.1)

    worker = await programs.start(1)
    assert worker.pid != spare
    assert await worker.wait_ready()
    worker.kill()
    await worker.wait()
    await programs.prepare()
    spare = programs.spare_pid
    assert spare is not None
    await programs.close()
    assert not _runs(spare)


_FRONT = """
import asyncio, os, pickle, sys
from postdate.broker.server.workers import WorkerPrograms
order = pickle.load(sys.stdin.buffer)
async def main():
    programs = WorkerPrograms([sys.executable, "-c", sys.argv[1]], (), lambda number: order)
    worker = await programs.start(0)
    await worker.wait_ready()
    await programs.prepare()
    print(worker.pid, programs.spare_pid, flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""


@on_a_loop
async def test_a_worker_ends_with_its_front(config: BrokerConfig) -> None:
    """However the front ends, it is killed here; so does a spare."""
    order = WorkerOrder(0, config, "info", NO_SOCKETS, (), None, "s3cret")
    front = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _FRONT, _SERVES.format(lasts=60)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert front.stdin is not None
    assert front.stdout is not None
    front.stdin.write(pickle.dumps(order))
    front.stdin.write_eof()
    pids = [int(pid) for pid in (await asyncio.wait_for(front.stdout.readline(), 60)).split()]
    assert [_runs(pid) for pid in pids] == [True, True]

    front.kill()
    await front.wait()
    await asyncio.to_thread(wait_until, lambda: not any(map(_runs, pids)), timeout_s=50)


def test_a_full_pipe_holds_up_nobody() -> None:
    reader, writer = os.pipe()
    try:
        told = ToldState(writer, watchdog_s=2)
        assert told.watchdog_interval_s == 1
        for _ in range(20_000):
            told.note_alive()
        told.note_ready()
    finally:
        os.close(reader)
        os.close(writer)


def _runs(pid: int) -> bool:
    """Whether a process runs; one that has ended may wait for somebody to ask for its exit code."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
