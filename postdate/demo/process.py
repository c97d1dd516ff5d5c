"""Run `postdate serve` as a process of its own, to kill it and start it again on the same data.

The demo, the integration tests and the benchmarks share this. It starts the service and waits until it is ready;
clients and messages are left out.
"""

import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

_LOG_TAIL_CHARACTERS: Final = 2000


class ProcessStartError(RuntimeError):
    """A service ended at start, or did not get ready in time; says where its log is."""


_PORTS: Final = range(20_000, 32_000)
"""Below those of outgoing connections, one of which could take a service's port before the service starts again."""


def free_ports(count: int) -> list[int]:
    """Find free TCP ports."""
    # All sockets are open at once, so that no port is found twice.
    with ExitStack() as sockets:
        ports: list[int] = []
        while len(ports) < count:
            port = secrets.choice(_PORTS)
            with suppress(OSError):
                sockets.enter_context(socket.socket()).bind(("127.0.0.1", port))
                ports.append(port)
        return ports


def wait_until(condition: Callable[[], bool], *, timeout_s: float, interval_s: float = 0.02) -> None:
    """Poll until the condition holds; `TimeoutError` if it never does."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not so after {timeout_s:g} s")
        time.sleep(interval_s)


class PostdateProcess:
    """One `postdate serve` in a folder, which keeps its data across `kill` and `start`."""

    def __init__(self, folder: Path, settings: Mapping[str, str] | None = None, *, config: Path | None = None) -> None:
        self.folder = folder.resolve()
        self._config = config
        self._settings = dict(settings or {})
        port, web_port = free_ports(2)
        # Empty where a test switches the port off.
        self.port = int(self._settings.get("brokerServicePort") or port)
        self.web_port = int(self._settings.get("webServicePort") or web_port)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The address for Pulsar clients."""
        return f"pulsar://127.0.0.1:{self.port}"

    @property
    def web_url(self) -> str:
        """The address of health and metrics."""
        return f"http://127.0.0.1:{self.web_port}"

    @property
    def pid(self) -> int:
        """The process id of the running service."""
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the service was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    @property
    def process(self) -> "subprocess.Popen[bytes] | None":
        """The running process, for signals of a caller's own."""
        return self._process

    @property
    def log_path(self) -> Path:
        """The file of the service's output."""
        return self.folder / "log"

    def log_tail(self) -> str:
        """Return the end of the service's output."""
        return self.log_path.read_text(errors="replace")[-_LOG_TAIL_CHARACTERS:]

    def start(self, *, timeout_s: float = 30.0, wait: bool = True) -> None:
        """Start the process and, by default, wait until it is ready."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self._command(), cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        if wait:
            self.wait_until_ready(timeout_s=timeout_s)

    def wait_until_ready(self, *, timeout_s: float = 30.0) -> None:
        """Wait until `/health` answers 200."""
        try:
            wait_until(self._is_ready, timeout_s=timeout_s)
        except TimeoutError as error:
            self.stop()
            raise ProcessStartError(f"the service did not get ready; the end of its log:\n{self.log_tail()}") from error

    def kill(self) -> None:
        """End the process with SIGKILL; its data stays."""
        self._end(signal.SIGKILL)

    def stop(self) -> int | None:
        """End the process with SIGTERM and return its exit code, None if it was not running."""
        return self._end(signal.SIGTERM)

    def read(self, path: str) -> str:
        """Return the web port's answer for a path such as `/metrics`."""
        with urllib.request.urlopen(f"{self.web_url}{path}", timeout=5) as reply:
            text: str = reply.read().decode()
        return text

    def _command(self) -> list[str]:
        settings = {
            "bindAddress": "127.0.0.1",
            "brokerServicePort": str(self.port),
            "webServicePort": str(self.web_port),
            "dataDirectory": str(self.folder / "data"),
        } | self._settings
        sets = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        config = [] if self._config is None else ["--config", str(self._config.resolve())]
        return [sys.executable, "-m", "postdate", "serve", *config, *sets]

    def _is_ready(self) -> bool:
        assert self._process is not None
        code = self._process.poll()
        if code is not None:
            raise ProcessStartError(f"the service ended at start with {code}; the end of its log:\n{self.log_tail()}")
        try:
            with urllib.request.urlopen(f"{self.web_url}/health", timeout=2) as reply:
                return bool(reply.status == 200)
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False

    def _end(self, how: signal.Signals) -> int | None:
        if self._process is None:
            return None
        self._process.send_signal(how)
        try:
            code = self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        self._process = None
        return code
