"""A recovery: the buckets that it has still to open."""

from dataclasses import dataclass, field

from tracker.bucket_properties import SnapshotProperty


@dataclass(slots=True)
class Recovery:
    """The buckets that the cursor's properties name and that are still to be opened."""

    unopened: list[SnapshotProperty] = field(default_factory=list)
    """In descending order of ledgers: the next one to be opened is last."""
    opened_ids: dict[int, None] = field(default_factory=dict)
    """Snapshots of those that were opened."""
    since_ms: int = -1
    are_unwanted: bool = False
    """The index was cleared meanwhile: they are opened to be deleted."""

    @property
    def withholds_all(self) -> bool:
        """Whether no row may be handed out at all: a bucket that is not opened yet may have an earlier one."""
        return bool(self.unopened) and not self.are_unwanted
