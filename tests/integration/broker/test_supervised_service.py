"""The service under systemd: its unit is one that systemd takes, and the process says what `Type=notify` waits for."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from postdate.demo.process import free_ports

ROOT = Path(__file__).parents[3]
UNIT = ROOT / "config/systemd/postdate.service"
INSTALLED = "/opt/postdate/bin/postdate"
EXPOSURE_MAX = 2.0
"""Of 10, as `systemd-analyze security` judges; a unit without any restriction has 9.6."""


def test_a_supervisor_hears_of_readiness_life_and_end(tmp_path: Path) -> None:
    """READY=1 comes when clients and health checks can connect, not before."""
    port, web_port = free_ports(2)
    settings = {"dataDirectory": tmp_path / "data", "brokerServicePort": port, "webServicePort": web_port}
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
        supervisor.bind(str(tmp_path / "notify"))
        supervisor.settimeout(60)
        with subprocess.Popen(
            [sys.executable, "-m", "postdate", "serve", *words],
            cwd=ROOT,
            env=os.environ | {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "200000"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            told = [supervisor.recv(100)]
            with urllib.request.urlopen(f"http://127.0.0.1:{web_port}/health", timeout=10) as answer:
                status = answer.status
            socket.create_connection(("127.0.0.1", port), timeout=10).close()
            told += [supervisor.recv(100) for _ in range(3)]
            process.send_signal(signal.SIGTERM)
            while told[-1] != b"STOPPING=1":
                told.append(supervisor.recv(100))
            _, stderr = process.communicate(timeout=60)

    assert process.returncode == 0, stderr
    assert status == 200
    assert told[0] == b"READY=1"
    assert {*told[1:-1]} == {b"WATCHDOG=1"}


def test_the_unit_is_one_that_systemd_takes_and_shuts_in(tmp_path: Path) -> None:
    """Verified with the program's own path in place of the installed one; a service that can do little harm."""
    if shutil.which("systemd-analyze") is None:
        if "CI" in os.environ:
            pytest.fail("systemd-analyze is missing, which CI must have")
        pytest.skip("systemd-analyze is missing")
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace(INSTALLED, str(Path(sys.executable).with_name("postdate"))))

    verified = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
    security = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", unit],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (verified.returncode, verified.stdout + verified.stderr) == (0, "")
    exposure = re.search(r"Overall exposure level for postdate\.service: ([\d.]+)", security.stdout)
    assert exposure is not None
    assert float(exposure[1]) <= EXPOSURE_MAX


def test_the_unit_waits_for_what_the_service_says() -> None:
    lines = UNIT.read_text().splitlines()

    assert {"Type=notify", "NotifyAccess=main", "RestartPreventExitStatus=2", "DynamicUser=yes"} <= {*lines}
    assert f"ExecStart={INSTALLED} serve --config /etc/postdate/broker.conf" in lines
