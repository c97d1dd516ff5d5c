"""Messages between two processes over a pair of sockets: anything that pickles, arrays without a copy.

A message is a pickle (protocol 5) and, behind it, the buffers of its arrays as they lie in memory. Both ends are
programs of ours, one started by the other, so pickles are trusted. Two threads of each end send and receive, where
copying megabytes holds up nobody: system calls run without the interpreter. Nothing is known here of calls or answers.

    +---------------+--------------+-------------------+--------+----------+-----
    | pickle: u64   | buffers: u32 | length each: u64  | pickle | buffer 1 | ...
    +---------------+--------------+-------------------+--------+----------+-----
"""

import os
import pickle
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Final

import numpy as np

_HEAD: Final = struct.Struct("<QI")
_PIECES_MAX: Final = min(1_024, os.sysconf("SC_IOV_MAX"))
"""The most pieces of memory that one system call takes."""


class ChannelEnd:
    """One end; `on_message` and `on_end` are called from a thread of its own.

    Args:
        end: A connected stream socket that blocks; closed with this.
        name: What its threads are called.
        on_message: Takes each message that arrives, in order.
        on_end: Called once, when nothing more can arrive: the other end has gone, or this one was closed.
    """

    def __init__(
        self, end: socket.socket, name: str, *, on_message: Callable[[Any], None], on_end: Callable[[], None]
    ) -> None:
        self._end = end
        self._on_message = on_message
        self._on_end = on_end
        self._outgoing: SimpleQueue[tuple[object, Callable[[Exception], None]] | None] = SimpleQueue()
        # Daemons: a program that ends without closing this must not hang.
        self._threads = [
            threading.Thread(target=work, name=f"{name}-{what}", daemon=True)
            for what, work in (("send", self._send_all), ("receive", self._receive_all))
        ]

    def start(self) -> None:
        """Begin to receive."""
        for thread in self._threads:
            thread.start()

    def send(self, message: object, on_unsendable: Callable[[Exception], None]) -> None:
        """Send a message some time after; what is in it must not change. Does nothing when the other end has gone.

        Args:
            message: Anything that pickles.
            on_unsendable: Called from a thread of this end when the message does not pickle.
        """
        self._outgoing.put((message, on_unsendable))

    def close(self) -> None:
        """Send what is waiting, let go, and wait until both threads have ended. From any thread but theirs."""
        self._outgoing.put(None)
        for thread in self._threads:
            thread.join()
        self._end.close()

    def _send_all(self) -> None:
        while (outgoing := self._outgoing.get()) is not None:
            message, on_unsendable = outgoing
            try:
                pieces = _pieces_of(message)
            except Exception as error:  # Whatever pickling of somebody's object raises.
                on_unsendable(error)
                continue
            try:
                _send(self._end, pieces)
            except OSError:
                # The other end has gone, which the receiving thread finds out too and tells.
                break
            del message, outgoing, pieces
        _shut_down(self._end)

    def _receive_all(self) -> None:
        try:
            while (message := _receive(self._end)) is not _END:
                self._on_message(message)
        except OSError:
            pass
        finally:
            self._on_end()


_END: Final = object()


def _shut_down(end: socket.socket) -> None:
    # It may be already.
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)


def _pieces_of(message: object) -> list[bytes | memoryview]:
    """Return what is sent of a message: its arrays where they are."""
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(message, protocol=5, buffer_callback=buffers.append)
    views = [buffer.raw() for buffer in buffers]
    lengths = np.fromiter(map(len, views), np.uint64, len(views)).tobytes()
    return [_HEAD.pack(len(data), len(views)) + lengths + data, *filter(len, views)]


def _send(end: socket.socket, pieces: Sequence[bytes | memoryview]) -> None:
    for first in range(0, len(pieces), _PIECES_MAX):
        _send_pieces(end, pieces[first : first + _PIECES_MAX])


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


def _receive(end: socket.socket) -> object:
    """Return the next message, or `_END` when the other end has gone between two."""
    head = bytearray(_HEAD.size)
    if not _fill(end, [memoryview(head)]):
        return _END
    length, count = _HEAD.unpack(head)
    lengths = bytearray(8 * count)
    data = bytearray(length)
    _fill(end, [memoryview(lengths), memoryview(data)])
    # Not bytearrays, which would be zeroed first.
    buffers = [np.empty(size, np.uint8).data for size in np.frombuffer(lengths, np.uint64).tolist()]
    views = [buffer for buffer in buffers if len(buffer)]
    for first in range(0, len(views), _PIECES_MAX):
        _fill(end, views[first : first + _PIECES_MAX])
    return pickle.loads(data, buffers=buffers)


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
            raise ConnectionError("the other end has gone in the middle of a message")
        view = view[received:]
