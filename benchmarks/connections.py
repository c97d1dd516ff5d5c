"""Measure how much memory connections take in the service: idle ones, and ones that never become clients.

    python -m benchmarks connections [--idle 5000] [--half-open 1000] [--keep-alive-s 95]

Each row is a service of its own, on loopback with a certificate made for the run. Resident memory of the service's
process is taken before, with all connections open, and after they have ended; the kernel's buffers of sockets are not
in it. Idle: CONNECT is answered, and nothing follows. Half open: the time for CONNECT (`connectTimeoutSeconds`) is an
hour here, so that they stay; a client that sent nothing, half a CONNECT, or the beginning of a TLS handshake.
Keep-alive: the processor time of the service and its processes while idle clients answer pings, by default each minute.
"""

import argparse
import resource
import selectors
import socket
import ssl
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.many_topics import processor_s
from broker.network.listener import allow_open_files
from demo.process import PostdateProcess, free_ports, wait_until
from tests.helpers.certificates import Authority
from tests.helpers.services.programs import frames

KIB: Final = 1024
MIB: Final = 1024 * 1024
SPARE_FILES: Final = 200
KEEP_ALIVE_S: Final = 30
"""The default interval."""
SETTLE_S: Final = 2.0
"""Until memory that has been freed is given back."""

Connect = Callable[["Target"], socket.socket]


class Target(NamedTuple):
    """Where to connect."""

    port: int
    port_tls: int
    context: ssl.SSLContext


class ConnectionCost(NamedTuple):
    """The cost of one kind of connection."""

    name: str
    count: int
    before_bytes: int
    open_bytes: int
    after_bytes: int


def idle(target: Target) -> socket.socket:
    """Connect as a client."""
    connection = socket.create_connection(("127.0.0.1", target.port))
    return _greeted(connection)


def idle_with_tls(target: Target) -> socket.socket:
    """Connect as a client with TLS."""
    plain = socket.create_connection(("127.0.0.1", target.port_tls))
    return _greeted(target.context.wrap_socket(plain, server_hostname="localhost"))


def silent(target: Target) -> socket.socket:
    """Connect and send nothing."""
    return socket.create_connection(("127.0.0.1", target.port))


def silent_with_tls(target: Target) -> socket.socket:
    """Connect to the port for TLS and send nothing."""
    return socket.create_connection(("127.0.0.1", target.port_tls))


def half_connect(target: Target) -> socket.socket:
    """Send half a CONNECT."""
    connection = silent(target)
    connection.sendall(frames.connect()[:-1])
    return connection


def half_handshake(target: Target) -> socket.socket:
    """Send the first message of a TLS handshake, and wait for ever."""
    sent, received = ssl.MemoryBIO(), ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        target.context.wrap_bio(received, sent, server_hostname="localhost").do_handshake()
    connection = silent_with_tls(target)
    connection.sendall(sent.read())
    # The service's part of the handshake has come.
    connection.recv(1)
    return connection


IDLE: Final[tuple[tuple[str, Connect], ...]] = (("idle", idle), ("idle, TLS", idle_with_tls))
HALF_OPEN: Final[tuple[tuple[str, Connect], ...]] = (
    ("half open: silent", silent),
    ("half open: silent on the port for TLS", silent_with_tls),
    ("half open: half a CONNECT", half_connect),
    ("half open: in a TLS handshake", half_handshake),
)


def main() -> None:
    """Measure each kind, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--idle", type=int, default=5_000, help="idle connections")
    parser.add_argument("--half-open", type=int, default=1_000, help="half-open connections")
    parser.add_argument("--keep-alive-s", type=float, default=95.0, help="how long keep-alive is measured")
    arguments = parser.parse_args()
    _allow_files(max(arguments.idle, arguments.half_open))
    print("| connections | number | MiB in all | KiB each | MiB left when they have ended |")
    print("|---|---:|---:|---:|---:|", flush=True)
    for kinds, count in ((IDLE, arguments.idle), (HALF_OPEN, arguments.half_open)):
        for name, connect in kinds:
            row = measure(name, connect, count)
            grown = row.open_bytes - row.before_bytes
            left = (row.after_bytes - row.before_bytes) / MIB
            print(f"| {name} | {count:,} | {grown / MIB:.1f} | {grown / KIB / count:.1f} | {left:.1f} |", flush=True)
    if arguments.keep_alive_s:
        percent = 100 * keep_alive_share(arguments.idle, arguments.keep_alive_s)
        print(f"\nKeep-alive of {arguments.idle:,} idle connections: {percent:.2f} % of a core")


def keep_alive_share(count: int, seconds: float) -> float:
    """Return the share of a core that keep-alive takes, with clients that answer each ping."""
    ping, pong = frames.command(frames.PING, {}), frames.command(frames.PONG, {})
    with tempfile.TemporaryDirectory(prefix="postdate-connections-") as folder:
        service = PostdateProcess(Path(folder) / "service")
        service.start()
        selector = selectors.DefaultSelector()
        try:
            target = Target(service.port, 0, ssl.create_default_context())
            for _ in range(count):
                selector.register(idle(target), selectors.EVENT_READ)
            pings = 0
            before, begin = processor_s(service.pid), time.monotonic()
            while time.monotonic() < begin + seconds:
                for key, _ in selector.select(begin + seconds - time.monotonic()):
                    connection = key.fileobj
                    assert isinstance(connection, socket.socket)
                    if len(connection.recv(len(ping))) != len(ping):
                        sys.exit("the service ended a connection")
                    connection.sendall(pong)
                    pings += 1
            # A client is pinged that was not heard of for an interval: in every second one.
            if pings < count * int(seconds / (3 * KEEP_ALIVE_S)):
                sys.exit(f"there were {pings:,} pings only")
            return (processor_s(service.pid) - before) / (time.monotonic() - begin)
        finally:
            for key in list(selector.get_map().values()):
                assert isinstance(key.fileobj, socket.socket)
                key.fileobj.close()
            selector.close()
            service.stop()


def measure(name: str, connect: Connect, count: int) -> ConnectionCost:
    """Open connections of a kind to a service of its own."""
    with tempfile.TemporaryDirectory(prefix="postdate-connections-") as folder:
        authority = Authority(Path(folder))
        files = authority.server()
        port_tls, web_port_tls = free_ports(2)
        service = PostdateProcess(
            Path(folder) / "service",
            {
                "connectTimeoutSeconds": "3600",
                "keepAliveIntervalSeconds": "0",
                "brokerServicePortTls": str(port_tls),
                "webServicePortTls": str(web_port_tls),
                "tlsCertificateFilePath": str(files.certificate),
                "tlsKeyFilePath": str(files.key),
            },
        )
        service.start()
        try:
            target = Target(service.port, port_tls, ssl.create_default_context(cafile=authority.path))
            # One of its kind first: what is loaded at the first use is not a connection's.
            connect(target).close()
            before, files_before = _settled_bytes(service.pid), _open_files(service.pid)
            connections = [connect(target) for _ in range(count)]
            # The last ones may not be accepted yet.
            wait_until(lambda: _open_files(service.pid) >= files_before + count, timeout_s=60)
            opened = _settled_bytes(service.pid)
            for connection in connections:
                connection.close()
            wait_until(lambda: _open_files(service.pid) < files_before + count // 10, timeout_s=60)
            return ConnectionCost(name, count, before, opened, _settled_bytes(service.pid))
        finally:
            service.stop()


def _greeted(connection: socket.socket) -> socket.socket:
    connection.sendall(frames.connect())
    (size,) = struct.unpack(">I", connection.recv(4, socket.MSG_WAITALL if type(connection) is socket.socket else 0))
    while size:
        size -= len(connection.recv(size))
    return connection


def _settled_bytes(pid: int) -> int:
    time.sleep(SETTLE_S)
    return int(Path(f"/proc/{pid}/status").read_text().split("VmRSS:")[1].split()[0]) * KIB


def _open_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def _allow_files(count: int) -> None:
    allowed = allow_open_files()
    if allowed != resource.RLIM_INFINITY and allowed < count + SPARE_FILES:
        sys.exit(f"{count:,} connections need more open files than the {allowed:,} that are allowed")


if __name__ == "__main__":
    main()
