"""Other processes of the service benchmark: client programs, and the use of the processors by each.

`LoadProcess` is the other end of `benchmarks.service_load`. `CpuMeter` tells how much of the machine was used by
other programs meanwhile: on a shared machine that is the difference between a figure and noise. It reads `/proc` and
knows nothing on other systems.
"""

import contextlib
import dataclasses
import json
import os
import resource
import selectors
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Self

from prometheus_client.parser import text_string_to_metric_families

from benchmarks.service_load import ConsumeOrder, ProduceOrder

_MEBIBYTE: Final = 2**20
_STDERR_TAIL_CHARACTERS: Final = 2_000


class LoadError(RuntimeError):
    """A scenario could not be measured; says what was missing, or what a client program wrote."""


class LoadProcess:
    """One client program, which does a step each time it is told to go."""

    def __init__(self, order: ProduceOrder | ConsumeOrder, log_path: Path) -> None:
        self._log_path = log_path
        program = "produce" if isinstance(order, ProduceOrder) else "consume"
        words = [sys.executable, "-m", "benchmarks.service_load", program, json.dumps(dataclasses.asdict(order))]
        with log_path.open("ab") as log:
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=Path(__file__).parents[1],
            )
        self._unread = b""
        self.wait_for("loaded")

    def go(self) -> None:
        """Let it do its next step."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()

    def connect(self) -> Self:
        """Let it connect, and wait until it has."""
        self.go()
        self.wait_for("ready")
        return self

    def run(self, *, on_progress: Callable[[int], None] | None = None) -> dict[str, Any]:
        """Let it do its work, and return its result."""
        self.go()
        return self.finish(on_progress=on_progress)

    def finish(self, *, on_progress: Callable[[int], None] | None = None) -> dict[str, Any]:
        """Wait for the result and the end of the process."""
        result = self.wait_for("result", on_progress=on_progress)
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired as error:
            raise LoadError(f"a client program does not end\n{self._said()}") from error
        return result

    def wait_for(
        self, event: str, *, timeout_s: float = 300.0, on_progress: Callable[[int], None] | None = None
    ) -> dict[str, Any]:
        """Wait until it tells this."""
        deadline = time.monotonic() + timeout_s
        while True:
            told = self._read_event(deadline)
            if told["event"] == event:
                return told
            if told["event"] == "failed":
                raise LoadError(told["reason"])
            if told["event"] == "progress" and on_progress is not None:
                on_progress(told["messages"])

    def close(self) -> None:
        """End it at once."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                # Bytes that it had not read any more do not matter.
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def _read_event(self, deadline: float) -> dict[str, Any]:
        """Read until a line is one of the program's own; the client library writes to the same place."""
        while True:
            line, newline, rest = self._unread.partition(b"\n")
            if newline:
                self._unread = rest
                if line.startswith(b'{"event"'):
                    told: dict[str, Any] = json.loads(line)
                    return told
                continue
            self._unread += self._read_some(deadline)

    def _read_some(self, deadline: float) -> bytes:
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(timeout=max(0.0, deadline - time.monotonic())):
                raise LoadError(f"a client program does not answer\n{self._said()}")
        data = os.read(self._process.stdout.fileno(), 65_536)
        if not data:
            raise LoadError(f"a client program ended without a result\n{self._said()}")
        return data

    def _said(self) -> str:
        return self._log_path.read_text(errors="replace")[-_STDERR_TAIL_CHARACTERS:]


@dataclasses.dataclass(frozen=True, slots=True)
class CpuUse:
    """How many processors were busy, on average over a span of time.

    Attributes:
        service: With the measured service; None if it was another process at the end than at the beginning.
        others: With what belongs neither to the service nor to the benchmark, and with other machines on the host.
    """

    service: float | None
    others: float


class CpuMeter:
    """Measures from its construction on; `read` tells the use since then.

    Args:
        service_pid: Tells the process id of the service, which runs both at the construction and at each `read`.
    """

    def __init__(self, service_pid: Callable[[], int]) -> None:
        self._service_pid = service_pid
        self._begun = time.monotonic()
        self._begun_pid = service_pid()
        self._busy_s, self._own_s, self._service_s = self._now()

    def read(self) -> CpuUse:
        """Return the use since the construction."""
        busy_s, own_s, service_s = self._now()
        span_s = time.monotonic() - self._begun
        others_s = (busy_s - self._busy_s) - (own_s - self._own_s)
        is_same = self._service_pid() == self._begun_pid
        return CpuUse(
            service=(service_s - self._service_s) / span_s if is_same else None,
            others=max(0.0, others_s / span_s),
        )

    def _now(self) -> tuple[float, float, float]:
        service_s = process_s(self._service_pid())
        # A client or service that has ended is counted with the children, a service that runs by its process id.
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return _busy_s(), sum(one.ru_utime + one.ru_stime for one in used) + service_s, service_s


def _busy_s() -> float:
    stat = Path("/proc/stat")
    if not stat.exists():
        return 0.0
    user, nice, system, _, _, irq, softirq, steal = map(int, stat.read_text().split(maxsplit=9)[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def process_s(pid: int) -> float:
    """Return the processor time of a process and of those that it has started and that run, in seconds."""
    stat = Path(f"/proc/{pid}/stat")
    if not stat.exists():
        return 0.0
    # The name, in brackets, may hold spaces.
    fields = stat.read_text().rpartition(")")[2].split()
    own_s = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return own_s + sum(map(process_s, child_pids(pid)))


def resident_mib(pid: int, field: str = "VmRSS") -> float:
    """Return the resident memory of a process and of those that it has started, in MiB; VmHWM is the most so far."""
    status = Path(f"/proc/{pid}/status").read_text()
    own_mib = int(status.split(f"{field}:")[1].split()[0]) * 1024 / _MEBIBYTE
    return own_mib + sum(resident_mib(child, field) for child in child_pids(pid))


def child_pids(pid: int) -> list[int]:
    """Return the ids of the processes that a process has started."""
    return [
        int(child)
        for children in Path(f"/proc/{pid}/task").glob("*/children")
        for child in children.read_text().split()
    ]


def wait_for_port(port: int, *, timeout_s: float = 120.0) -> None:
    """Wait until something listens on a port of this machine."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError as error:
            if time.monotonic() > deadline:
                raise LoadError(f"nothing listens on port {port} after {timeout_s:g} s") from error
            time.sleep(0.005)
        else:
            return


def delayed_count(web_url: str, topic: str) -> int:
    """Ask a service how many messages of a topic it knows to be delayed."""
    with urllib.request.urlopen(f"{web_url}/metrics/", timeout=30) as reply:
        lines = reply.read().decode().splitlines()
    # One line is parsed rather than all: a real Pulsar's text has samples that the strict parser refuses.
    text = "\n".join(line for line in lines if line.startswith("pulsar_subscription_delayed{") and topic in line)
    return sum(int(sample.value) for family in text_string_to_metric_families(text + "\n") for sample in family.samples)
