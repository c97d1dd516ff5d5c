"""The bytes of all connections that are not durable yet, and the pause of those that send more than fits.

    SEND ─► appended ─► `add` ─► commit ends, also after the connection ─► `remove`

A connection's own bound ends with the connection, but its bytes wait on: without a bound for the service, clients that
connect again would add to the memory for as long as the disk stalls.
"""

from typing import Final

from postdate.broker.topics.link import ClientLink

_FULL: Final = "too much waits for the disk"


class PublishBuffer:
    """Counts bytes that wait for the disk, and pauses the connections that send while there are too many.

    Args:
        bytes_max: The most; 0 or less is no bound.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self.size_bytes = 0
        """Bytes that wait for the disk now."""
        self._paused: dict[ClientLink, None] = {}

    @property
    def is_full(self) -> bool:
        """Whether there are too many."""
        return 0 < self._bytes_max < self.size_bytes

    def add(self, link: ClientLink | None, size_bytes: int) -> None:
        """Count bytes of a connection; where they are too many, nothing more is read from it for now.

        Args:
            link: The connection; None where its caller waits for its answer before it sends more.
            size_bytes: How many bytes.
        """
        self.size_bytes += size_bytes
        if self.is_full and link is not None and link not in self._paused:
            self._paused[link] = None
            link.pause_reading(_FULL)

    def remove(self, size_bytes: int) -> None:
        """Count these no more: their commit has ended, whether it failed or not."""
        self.size_bytes -= size_bytes
        if self._paused and self.size_bytes <= self._bytes_max // 2:
            paused, self._paused = self._paused, {}
            for link in paused:
                link.resume_reading(_FULL)
