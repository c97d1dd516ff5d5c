"""Errors in bytes from the wire.

A peer that breaks the protocol loses its connection, with the reason in the log. A damaged payload is no error here but
a `frames.CorruptSend`: the client sends it again.
"""


class ProtocolError(Exception):
    """The peer breaks the protocol; the text is logged before the connection closes."""


class FrameTooLargeError(ProtocolError):
    """A frame announces more bytes than the service accepts."""
