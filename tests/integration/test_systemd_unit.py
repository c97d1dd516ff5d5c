"""The systemd unit under a real systemd: a small Debian boots, with the service installed as the unit's head says.

`systemd-nspawn` boots it, with process ids and files of its own and the network of this machine. A client of this
machine publishes and consumes.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pulsar
import pytest

from postdate.demo.process import free_ports
from tests.helpers.debian import PYTHON_VERSION, debian_tar, need_tools, pip_configuration
from tests.helpers.wheels import downloaded_wheels

pytestmark = [pytest.mark.installation, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "config/systemd/postdate.service"
PATHS = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
WATCHDOG_S = 2


def installation_steps() -> list[str]:
    """Return the commands in the head of the unit."""
    head = UNIT.read_text().partition("[Unit]")[0]
    return re.findall(r"^#   (.+)$", head, re.MULTILINE)


class Machine:
    """A booted Debian; a context manager."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.port, self.web_port = free_ports(2)
        self.configuration = root / "etc/postdate/broker.conf"

    def fill(self, wheels: Path) -> None:
        """Put the files in place that the steps of the unit's head begin with."""
        subprocess.run(["tar", "--extract", "--file", debian_tar(), "--directory", self.root], check=True)
        shutil.copytree(wheels, self.root / "wheels")
        (self.root / "etc/pip.conf").write_text(pip_configuration(Path("/wheels")))
        # As in the repository, which is the folder / here.
        folder = self.root / UNIT.parent.relative_to(ROOT)
        folder.mkdir(parents=True)
        shutil.copy(UNIT, folder)

    def install(self) -> None:
        """Run the steps of the unit's head; before the last, which starts the service, choose free ports.

        Half a minute of the watchdog is too long for a test, so the unit gets a shorter one by a file of its own.
        """
        *preparing, starting = installation_steps()
        for step in preparing:
            self.run(step)
        self.set(brokerServicePort=self.port, webServicePort=self.web_port)
        changes = self.root / "etc/systemd/system/postdate.service.d/test.conf"
        changes.parent.mkdir()
        changes.write_text(f"[Service]\nWatchdogSec={WATCHDOG_S}\n")
        self.run(starting)

    def run(self, step: str) -> None:
        """Run a step in the booted machine."""
        command = [*self._inside(), "/bin/sh", "-ec", f"cd /; {step}"]
        done = subprocess.run(command, check=False, capture_output=True, text=True, env=PATHS, timeout=240)
        assert done.returncode == 0, (step, done.stdout, done.stderr)

    def set(self, **settings: object) -> None:
        """Change keys of the service's `broker.conf`."""
        text = self.configuration.read_text()
        for key, value in settings.items():
            text, count = re.subn(rf"(?m)^{key}=.*$", f"{key}={value}", text)
            assert count == 1, key
        self.configuration.write_text(text)

    def __enter__(self) -> "Machine":
        self.log = (self.root.parent / "console").open("w+")
        boot = ["systemd-nspawn", "--quiet", "--register=no", "--keep-unit", "--boot", "--machine=postdate-test"]
        self._process = subprocess.Popen(
            [*boot, "--directory", self.root], stdin=subprocess.DEVNULL, stdout=self.log, stderr=subprocess.STDOUT
        )
        self._wait_until(lambda: self.systemctl("is-system-running").strip() in ("running", "degraded"))
        return self

    def __exit__(self, *_: object) -> None:
        self.systemctl("poweroff")
        try:
            self._process.wait(timeout=60)
        finally:
            self._process.kill()
            self.log.close()

    def systemctl(self, *words: str) -> str:
        """Ask the systemd inside; nothing where it does not answer yet."""
        if self._process.poll() is not None or not self._children():
            return ""
        command = [*self._inside(), "systemctl", *words]
        return subprocess.run(command, capture_output=True, text=True, check=False, env=PATHS, timeout=90).stdout

    def _children(self) -> list[str]:
        return Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()

    def _inside(self) -> list[str]:
        """Return the words before a command that is to run in the machine: its first process is systemd."""
        return ["nsenter", "--target", self._children()[0], "--all", "--"]

    def unit(self) -> dict[str, str]:
        """Return what systemd says of the service."""
        lines = self.systemctl("show", "postdate").splitlines()
        return {key: value for key, _, value in (line.partition("=") for line in lines)}

    def _wait_until(self, is_reached: Callable[[], bool], timeout_s: float = 90) -> None:
        end_s = time.monotonic() + timeout_s
        while not is_reached():
            if time.monotonic() > end_s or self._process.poll() is not None:
                self.log.seek(0)
                raise TimeoutError(self.log.read()[-5_000:])
            time.sleep(0.2)

    def wait_for(self, **wanted: str) -> dict[str, str]:
        """Wait until systemd says this of the service, and return all that it says."""
        self._wait_until(lambda: wanted.items() <= self.unit().items())
        return self.unit()

    def health(self) -> dict[str, object]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.web_port}/health", timeout=10) as answer:
            return dict(json.load(answer))

    def can_write(self, folder: str) -> bool:
        """Whether root could write to a folder in the service's own view of the files."""
        command = ["nsenter", "--target", str(self.process_id()), "--mount", "touch", f"{folder}/probe"]
        return subprocess.run(command, capture_output=True, check=False, timeout=30).returncode == 0

    def process_id(self) -> int:
        """Return the id of the service's process on this machine; inside it has another."""
        inside = self.unit()["MainPID"]
        for status in Path("/proc").glob("[0-9]*/status"):
            try:
                text = status.read_text()
                command = status.with_name("cmdline").read_bytes()
            except OSError:
                continue
            ids = re.search(r"^NSpid:\s+(\d+)\s+(\d+)$", text, re.MULTILINE)
            if ids is not None and ids[2] == inside and b"\0serve\0" in command:
                return int(ids[1])
        raise LookupError(inside)


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    need_tools("systemd-nspawn", "nsenter")
    # Below a folder that the machine's own users may enter.
    folder = Path(tempfile.mkdtemp(prefix="postdate-machine-"))
    folder.chmod(0o755)
    try:
        machine = Machine(folder / "root")
        machine.root.mkdir()
        # Of the image's extras, so that both tests download once.
        machine.fill(downloaded_wheels(tmp_path_factory, "service,s3", python_version=PYTHON_VERSION))
        with machine:
            machine.install()
            yield machine
    finally:
        shutil.rmtree(folder)


def test_systemd_starts_the_service_as_a_user_that_can_write_to_its_state_alone(machine: Machine) -> None:
    unit = machine.wait_for(ActiveState="active")

    assert machine.health()["status"] == "ok"
    assert (unit["Type"], unit["SubState"], unit["NRestarts"]) == ("notify", "running", "0")
    state = machine.root / "var/lib/private/postdate"
    owner = Path(f"/proc/{machine.process_id()}").stat().st_uid
    assert owner >= 61_184  # The first of systemd's dynamic users.
    assert state.stat().st_mode & 0o777 == 0o700
    files = list(state.rglob("*"))
    assert files
    assert {path.stat().st_uid for path in files} == {owner}
    for folder, is_writable in (
        ("/var/lib/postdate", True),
        ("/etc/postdate", False),
        ("/opt", False),
        ("/var/lib", False),
    ):
        assert machine.can_write(folder) == is_writable, folder


def test_systemd_kills_a_service_that_stands_still_and_its_messages_come_after_the_restart(machine: Machine) -> None:
    before = machine.wait_for(ActiveState="active")
    client = pulsar.Client(f"pulsar://127.0.0.1:{machine.port}", logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    consumer = client.subscribe("watched", "me", consumer_type=pulsar.ConsumerType.Shared)
    client.create_producer("watched").send(b"after the watchdog", deliver_after=timedelta(seconds=1))

    os.kill(machine.process_id(), signal.SIGSTOP)
    after = machine.wait_for(NRestarts=str(int(before["NRestarts"]) + 1), ActiveState="active")
    message = consumer.receive(timeout_millis=60_000)
    client.close()

    assert message.data() == b"after the watchdog"
    assert after["MainPID"] != before["MainPID"]


def test_systemd_stops_the_service_in_order(machine: Machine) -> None:
    machine.wait_for(ActiveState="active")

    machine.systemctl("stop", "postdate")

    unit = machine.unit()
    assert (unit["ActiveState"], unit["Result"], unit["ExecMainStatus"]) == ("inactive", "success", "0")


def test_a_refused_configuration_is_not_started_again(machine: Machine) -> None:
    machine.systemctl("stop", "postdate")
    machine.set(bindAddress="0.0.0.0")
    try:
        machine.systemctl("start", "postdate")
        unit = machine.wait_for(ActiveState="failed")
    finally:
        machine.set(bindAddress="127.0.0.1")
        machine.systemctl("reset-failed", "postdate")

    assert (unit["Result"], unit["ExecMainStatus"], unit["NRestarts"]) == ("exit-code", "2", "0")
