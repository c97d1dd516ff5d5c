"""What is known of the positions in a bucket's segments that are not loaded.

Mostly nothing but their number: the rows say it themselves when they are loaded. Bitmaps are here while someone who
reads the log has to know which of its entries are tracked.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pyroaring import BitMap

from snapshot_storage.encoding.columns import DelayedIndexes
from tracker.columns.position_set import PositionSet
from tracker.columns.position_sums import subtract, sum_of
from tracker.core.actions import ReadPositions
from tracker.core.retry import Retry


@dataclass(slots=True, eq=False)
class UnreadPositions:
    """The unread part of one bucket."""

    count: int = 0
    """How many rows of it are to come, as far as that is known without its bitmaps."""
    known: PositionSet | None = None
    """The positions themselves, while the bucket is warm."""
    known_bytes: int = 0
    """About how much memory they took at most."""
    was_known: bool = False
    """Whether anyone may have passed over its positions in the log, trusting that they come from here."""
    position_sum: int | None = None
    """What the rows that are to come must add up to (`position_sums`), None where entry 0 was not asked."""
    needs_known: bool = False
    """Whether its segments hold rows that its bitmaps do not: then they cannot be loaded without these."""

    is_asked: bool = False
    """Whether anyone has asked since `asked_ms`."""
    asked_ms: int = -1
    question: ReadPositions | None = None
    """The read in flight."""
    retry: Retry = field(default_factory=Retry)
    loaded_meanwhile: list[DelayedIndexes] = field(default_factory=list)
    """What was loaded while the read was in flight."""

    def answer(self, bitmaps: Iterable[tuple[int, BitMap]], loaded: PositionSet, position_sum: int) -> bool:
        """Take the positions that the question was about; what has been loaded since is none any more.

        Args:
            bitmaps: The positions.
            loaded: What has a loaded row, and is counted there: after a merge, some rows are loaded again.
            position_sum: What all positions add up to.

        Returns:
            Whether the rows that came since an earlier question were those that entry 0 had named.
        """
        known = PositionSet.of(bitmaps)
        for rows in self.loaded_meanwhile:
            known.take(rows.ledger_ids, rows.entry_ids)
            position_sum = subtract(position_sum, sum_of(rows.ledger_ids, rows.entry_ids))
        is_as_named = self.position_sum is None or self.position_sum == position_sum
        # Rows without a bit make it useless; then the bucket stays warm.
        self.position_sum = None if self.needs_known else position_sum
        self.drop_question()
        self.retry.reset()
        self.warm(known)
        self.count = known.count - known.common_count(loaded)
        return is_as_named

    def warm(self, known: PositionSet) -> None:
        """Know the positions from now on."""
        self.known = known
        self.known_bytes = known.size_bytes()
        self.count = known.count
        self.was_known = True
        self.is_asked = True

    def drop_question(self) -> None:
        """Want no answer to the question in flight."""
        self.question = None
        self.loaded_meanwhile = []

    def forget(self) -> None:
        """There is no unread part any more, or it is served no more."""
        self.known = None
        self.count = 0
        self.drop_question()

    def note_loaded(self, rows: DelayedIndexes, new_count: int, rows_left: int) -> None:
        """Note that rows have left the unread part, of which so many were not tracked in memory before."""
        if self.question is not None:
            self.loaded_meanwhile.append(rows)
        if self.position_sum is not None:
            self.position_sum = subtract(self.position_sum, sum_of(rows.ledger_ids, rows.entry_ids))
        known_max = rows_left if self.known is None else self.known.count
        self.count = min(rows_left, known_max, max(0, self.count - new_count))

    def discard(self, ledger_id: int, entry_ids: BitMap) -> None:
        """Forget known positions of a ledger."""
        assert self.known is not None
        count_before = self.known.count
        self.known.subtract(ledger_id, entry_ids)
        self.count = max(0, self.count - (count_before - self.known.count))

    def trim(self, first_ledger_id: int) -> None:
        """Forget the ledgers below this one, as far as they are known."""
        if self.known is not None:
            for ledger_id in [ledger for ledger in self.known.bitmaps if ledger < first_ledger_id]:
                self.known.drop_ledger(ledger_id)
            self.count = min(self.count, self.known.count)

    def bitmap_of(self, ledger_id: int, without: Mapping[int, BitMap]) -> BitMap | None:
        """Return the known positions of a ledger, without those that were handed out from elsewhere."""
        bitmap = self.known.bitmaps.get(ledger_id) if self.known is not None else None
        if bitmap is None or ledger_id not in without:
            return bitmap
        return bitmap - without[ledger_id]
