"""Whether the consumers of one connection may be sent more.

Each outbox reads from the log for itself, and asks before it does. A read that goes to the disk ends later, and many
consumers of one client may begin theirs at once, each at a connection that takes bytes. So bytes count from the moment
their read begins. A connection never holds more than what it had when it last took bytes, and these reads.

    begin_read ─► on their way to the connection ─► end_read, after the write
                  `READ_BYTES_MAX`: no other read begins
"""

from typing import Final

READ_BYTES_MAX: Final = 8 * 1024 * 1024
"""Bytes that are being read for one connection; above it no other read begins, so one batch may come on top.

Two batches of the default size are read at once: one is on its way from the disk while the other is written.
"""


class Writability:
    """Whether one connection takes more bytes of messages.

    Args:
        read_bytes_max: No read begins while so many bytes are being read.
    """

    __slots__ = ("_has_room", "_read_bytes", "_read_bytes_max", "_takes_bytes", "is_writable")

    def __init__(self, *, read_bytes_max: int = READ_BYTES_MAX) -> None:
        self.is_writable = True
        """Whether a read may begin now."""
        self._takes_bytes = True
        self._has_room = True
        self._read_bytes = 0
        self._read_bytes_max = read_bytes_max

    def pause(self) -> None:
        """Take nothing more: the client reads more slowly than it is sent to."""
        self._takes_bytes = self.is_writable = False

    def resume(self) -> bool:
        """Take bytes again; return whether outboxes that wait must hear of it."""
        self._takes_bytes = True
        return self._look()

    def begin_read(self, size: int) -> None:
        """Count bytes that are being read, up to their write."""
        self._read_bytes += size
        if self._read_bytes >= self._read_bytes_max:
            self._has_room = self.is_writable = False

    def end_read(self, size: int) -> bool:
        """Count these no more: they are written, or will not be. Return whether outboxes that wait must hear of it."""
        self._read_bytes -= size
        # All outboxes that wait are told together, so half of the bytes go first: not each little read tells them.
        if self._has_room or self._read_bytes > self._read_bytes_max // 2:
            return False
        self._has_room = True
        return self._look()

    def _look(self) -> bool:
        self.is_writable = self._takes_bytes and self._has_room
        return self.is_writable
