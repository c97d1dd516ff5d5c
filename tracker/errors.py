"""The errors that leave this package: one base."""


class TrackerError(Exception):
    """A tracker could not do what was asked."""


class TrackerClosedError(TrackerError):
    """The tracker was used after `close`."""

    def __init__(self, operation: str) -> None:
        super().__init__(f"cannot {operation}: the tracker is closed")


class ClearTimeoutError(TrackerError, TimeoutError):
    """Some snapshots could not be deleted in time; the index itself is empty, and deleting goes on."""

    def __init__(self, bucket_count: int, timeout_ms: int) -> None:
        super().__init__(f"{bucket_count} bucket snapshots were not deleted within {timeout_ms} ms")
        self.bucket_count = bucket_count


class ResidualSnapshotsError(TrackerError):
    """Snapshots of a cursor that goes away could not all be deleted."""

    def __init__(self, keys: list[str]) -> None:
        super().__init__(f"could not delete the snapshots of {len(keys)} properties, first {keys[0]}")
        self.keys = keys
