"""Bytes to frames by the service's own splitter and parser, as its connections do it."""

from postdate.broker.protocol.frames import Frame, FrameSplitter, parse_frame


def frames_in(chunk: bytes, splitter: FrameSplitter | None = None) -> list[Frame]:
    """Split bytes, and parse every frame that they complete."""
    return [parse_frame(*one) for one in (splitter or FrameSplitter()).feed(chunk)]
