"""The errors that leave this package: one base."""


class TrackerError(Exception):
    """A tracker could not do what was asked."""


class TrackerClosedError(TrackerError):
    """The tracker was used after `close`."""

    def __init__(self, operation: str) -> None:
        super().__init__(f"cannot {operation}: the tracker is closed")
