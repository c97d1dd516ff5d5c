"""Messages between two processes over a pair of sockets: anything that pickles, arrays without a copy.

A message is a number, a pickle (protocol 5) and, behind it, the buffers of its arrays as they lie in memory. Both ends
are programs of ours, one started by the other, so pickles are trusted. Two threads of each end send and receive, where
copying megabytes holds up nobody: system calls run without the interpreter. Nothing is known here of calls or answers;
the number is there so that a message of which the rest cannot be read is known by it.

    +-------------+-------------+--------------+------------------+--------+----------+-----
    | number: i64 | pickle: u64 | buffers: u32 | length each: u64 | pickle | buffer 1 | ...
    +-------------+-------------+--------------+------------------+--------+----------+-----
"""

import os
import pickle
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Final, Protocol
from weakref import WeakSet

import numpy as np

_HEAD: Final = struct.Struct("<qQI")
_PIECES_MAX: Final = min(1_024, os.sysconf("SC_IOV_MAX"))
"""The most pieces of memory that one system call takes."""

OnUnsendable = Callable[[Exception], None]


class Receiver(Protocol):
    """Takes what arrives at one end; called from a thread of its own, and must not raise."""

    def take(self, number: int, message: Any) -> None:
        """Take a message."""

    def take_unreadable(self, number: int, error: Exception) -> None:
        """Take note of a message that does not unpickle."""

    def take_end(self) -> None:
        """Nothing more can arrive: the other end has gone, or this one was closed. Called once."""


class ChannelEnd:
    """One end.

    Args:
        end: A connected stream socket that blocks; closed with this.
        name: What its threads are called.
        receiver: Takes what arrives.
    """

    def __init__(self, end: socket.socket, name: str, receiver: Receiver) -> None:
        self._end = end
        self._receiver = receiver
        self._outgoing: SimpleQueue[tuple[int, object, OnUnsendable] | None] = SimpleQueue()
        # Daemons: a program that ends without closing this must not hang.
        self._threads = [
            threading.Thread(target=work, name=f"{name}-{what}", daemon=True)
            for what, work in (("send", self._send_all), ("receive", self._receive_all))
        ]

    def start(self) -> None:
        """Begin to receive."""
        _open_ends.add(self._end)
        for thread in self._threads:
            thread.start()

    def send(self, number: int, message: object, on_unsendable: OnUnsendable) -> None:
        """Send a message some time after; what is in it must not change. Does nothing when the other end has gone.

        Args:
            number: What the other end knows it by.
            message: Anything that pickles.
            on_unsendable: Called from a thread of this end when the message does not pickle.
        """
        self._outgoing.put((number, message, on_unsendable))

    def close(self) -> None:
        """Send what is waiting, let go, and wait until both threads have ended. From any thread but theirs."""
        self._outgoing.put(None)
        for thread in self._threads:
            thread.join()
        self._end.close()

    # A message is known to one call only, so that its memory is free while the next one is waited for.

    def _send_all(self) -> None:
        with suppress(OSError):
            # The other end has gone, which the receiving thread finds out too and tells.
            while self._send_next():
                pass
        _shut_down(self._end)

    def _send_next(self) -> bool:
        outgoing = self._outgoing.get()
        if outgoing is None:
            return False
        number, message, on_unsendable = outgoing
        try:
            pieces = _pieces_of(number, message)
        except Exception as error:  # Whatever pickling of somebody's object raises.
            on_unsendable(error)
        else:
            for first in range(0, len(pieces), _PIECES_MAX):
                _send_pieces(self._end, pieces[first : first + _PIECES_MAX])
        return True

    def _receive_all(self) -> None:
        try:
            with suppress(OSError):
                while self._receive_next():
                    pass
        finally:
            _shut_down(self._end)
            self._receiver.take_end()

    def _receive_next(self) -> bool:
        head = bytearray(_HEAD.size)
        if not _fill(self._end, [memoryview(head)]):
            return False
        number, data, buffers = _receive_rest(self._end, head)
        try:
            message = pickle.loads(data, buffers=buffers)
        except Exception as error:  # Whatever unpickling of somebody's object raises.
            self._receiver.take_unreadable(number, error)
        else:
            self._receiver.take(number, message)
        return True


_open_ends: Final[WeakSet[socket.socket]] = WeakSet()


def _close_in_fork() -> None:
    """A fork must not keep an end open: the other process would not notice that this one has died."""
    for end in list(_open_ends):
        end.close()


os.register_at_fork(after_in_child=_close_in_fork)


def _shut_down(end: socket.socket) -> None:
    # It may be already.
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)


def _pieces_of(number: int, message: object) -> list[bytes | memoryview]:
    """Return what is sent of a message: its arrays where they are."""
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(message, protocol=5, buffer_callback=buffers.append)
    views = [buffer.raw() for buffer in buffers]
    lengths = np.fromiter(map(len, views), np.uint64, len(views)).tobytes()
    return [_HEAD.pack(number, len(data), len(views)) + lengths + data, *filter(len, views)]


def _send_pieces(end: socket.socket, pieces: Sequence[bytes | memoryview]) -> None:
    """Send all of them, also when a system call takes a part."""
    left = sum(map(len, pieces))
    sent = end.sendmsg(pieces)
    if sent < left:
        for piece in pieces:
            taken = min(sent, len(piece))
            sent -= taken
            if taken < len(piece):
                end.sendall(memoryview(piece)[taken:])


def _receive_rest(end: socket.socket, head: bytearray) -> tuple[int, bytearray, list[memoryview]]:
    """Return the number, the pickle and the buffers of the message that begins so.

    Raises:
        ConnectionError: The other end has gone before its end.
    """
    number, length, count = _HEAD.unpack(head)
    lengths, data = bytearray(8 * count), bytearray(length)
    _fill_whole(end, [memoryview(lengths), memoryview(data)])
    # Not bytearrays, which would be zeroed first.
    buffers = [np.empty(size, np.uint8).data for size in np.frombuffer(lengths, np.uint64).tolist()]
    views = [buffer for buffer in buffers if len(buffer)]
    for first in range(0, len(views), _PIECES_MAX):
        _fill_whole(end, views[first : first + _PIECES_MAX])
    return number, data, buffers


def _fill_whole(end: socket.socket, views: Sequence[memoryview]) -> None:
    if not _fill(end, views):
        raise ConnectionError(_IN_THE_MIDDLE)


def _fill(end: socket.socket, views: Sequence[memoryview]) -> bool:
    """Receive until all are full; False if the other end has gone before the first byte.

    Raises:
        ConnectionError: It has gone in the middle.
    """
    wanted = sum(map(len, views))
    if not wanted:
        return True
    received = end.recvmsg_into(list(views), 0, socket.MSG_WAITALL)[0]
    if not received:
        return False
    if received < wanted:
        for view in views:
            taken = min(received, len(view))
            received -= taken
            _fill_one(end, view[taken:])
    return True


def _fill_one(end: socket.socket, view: memoryview) -> None:
    while view:
        received = end.recv_into(view, 0, socket.MSG_WAITALL)
        if not received:
            raise ConnectionError(_IN_THE_MIDDLE)
        view = view[received:]


_IN_THE_MIDDLE: Final = "the other end has gone in the middle of a message"
