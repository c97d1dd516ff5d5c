"""Messages of the process to its supervisor: systemd, or any program with its notify protocol.

A supervisor names a datagram socket in `NOTIFY_SOCKET`. The process sends `READY=1` when clients can connect and
`STOPPING=1` when the service begins to stop. If `WATCHDOG_USEC` is set, the event loop sends `WATCHDOG=1` at every half
of that time. Without a supervisor nothing is sent. See sd_notify(3).
"""

import logging
import os
import socket
from collections.abc import Mapping
from typing import Final

logger = logging.getLogger(__name__)

USEC_PER_S: Final = 1_000_000


class ServiceManager:
    """The supervisor of this process, if there is one.

    Args:
        address: The path of its socket, `@` before the name of an abstract one; None for no supervisor.
        watchdog_s: How long the supervisor waits for a sign of life before it kills the process; None for ever.
    """

    def __init__(self, address: str | None = None, *, watchdog_s: float | None = None) -> None:
        self._address = address
        if address is not None and address.startswith("@"):
            self._address = f"\0{address[1:]}"
        self.watchdog_interval_s: float = 0 if address is None or watchdog_s is None else watchdog_s / 2
        """The time between two signs of life; 0 for none."""

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> "ServiceManager":
        """Return the supervisor that the environment of this process names."""
        address = environment.get("NOTIFY_SOCKET") or None
        is_for_this_process = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        watchdog_usec = int(environment.get("WATCHDOG_USEC", 0)) if is_for_this_process else 0
        return cls(address, watchdog_s=watchdog_usec / USEC_PER_S if watchdog_usec else None)

    def note_ready(self) -> None:
        """Say that clients can connect."""
        self._tell("READY=1")

    def note_stopping(self) -> None:
        """Say that no client can connect any more, and that the end is near."""
        self._tell("STOPPING=1")

    def note_alive(self) -> None:
        """Say that the event loop turns."""
        self._tell("WATCHDOG=1")

    def _tell(self, state: str) -> None:
        if self._address is None:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
                # A supervisor that does not read must not hold up the event loop.
                channel.setblocking(False)
                channel.sendto(state.encode(), self._address)
        except OSError as error:
            logger.warning("%s could not be told to the service manager: %s", state, error)
