"""What can be wrong with bytes from the wire.

Either the peer does not speak the protocol, and then the connection ends with the reason in the log, or one payload
was damaged on its way, which is not an error here but a `frames.CorruptSend`: the client resends it.
"""


class ProtocolError(Exception):
    """The peer does not keep the protocol; the text is the reason that is logged before the connection closes."""


class FrameTooLargeError(ProtocolError):
    """A frame announces more bytes than the service accepts."""
