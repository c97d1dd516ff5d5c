"""Messages to a supervisor over a real socket; no failure of that socket can stop a service."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from postdate.broker.server.service_manager import ServiceManager


@pytest.fixture(params=["path", "abstract"])
def supervisor(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    """A supervisor's socket, with its address as `NOTIFY_SOCKET` has it."""
    is_abstract = request.param == "abstract"
    address = f"@postdate-{os.getpid()}" if is_abstract else str(tmp_path / "notify@1")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind(f"\0{address[1:]}" if is_abstract else address)
        channel.settimeout(5)
        yield channel, address


def test_a_supervisor_is_told_what_happens(supervisor: tuple[socket.socket, str]) -> None:
    channel, address = supervisor
    manager = ServiceManager.of({"NOTIFY_SOCKET": address})

    manager.note_ready()
    manager.note_alive()
    manager.note_stopping()

    assert [channel.recv(100) for _ in range(3)] == [b"READY=1", b"WATCHDOG=1", b"STOPPING=1"]


def test_without_a_supervisor_nothing_is_sent(caplog: pytest.LogCaptureFixture) -> None:
    for environment in ({}, {"NOTIFY_SOCKET": ""}):
        ServiceManager.of(environment).note_ready()

    assert caplog.records == []


@pytest.mark.parametrize("address", ["/nowhere/notify", "relative", "vsock:2:1234"])
def test_a_supervisor_that_cannot_be_told_is_a_warning(address: str, caplog: pytest.LogCaptureFixture) -> None:
    """To serve is more important than to be supervised."""
    ServiceManager.of({"NOTIFY_SOCKET": address}).note_ready()

    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_a_supervisor_that_does_not_read_holds_nothing_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind(str(tmp_path / "notify"))
        manager = ServiceManager(str(tmp_path / "notify"))

        for _ in range(1_000):
            manager.note_alive()

    assert "could not be told" in caplog.text


@pytest.mark.parametrize(
    ("environment", "interval_s"),
    [
        ({"WATCHDOG_USEC": "30000000"}, 15),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 15),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, 0),
        ({"WATCHDOG_USEC": "0"}, 0),
        ({}, 0),
    ],
)
def test_signs_of_life_come_twice_as_often_as_they_are_missed(environment: dict[str, str], interval_s: float) -> None:
    manager = ServiceManager.of({"NOTIFY_SOCKET": "/run/notify", **environment})

    assert manager.watchdog_interval_s == interval_s
