"""Whether a store takes new entries, decided by how its commits end and by the room of its disk.

    taking ──── room is short, or a commit finds none ────► refusing     acknowledgements, trims and reads go on
           ◄─── a commit succeeds, and there is room ──────
    taking ──── commits fail for other reasons, lastingly ► failed       an operator has to look at the disk
           ◄─── a commit succeeds ─────────────────────────

Pure decisions, also about what to log and when. `ManagedLedger` refuses, and `Committer` tries again.
"""

import math

from managed_ledger.errors import LedgerWriteError, StoreFullError
from managed_ledger.rocksdb_store.disk_room import Room

FAILURES_MIN = 3
FAILING_SECONDS_MIN = 30.0
"""So many commits in a row, over so long a time, must fail to call it lasting: opening anew was tried some times."""
LOG_SECONDS = 60.0
"""How often a log says that entries are refused."""

_MIB = 2**20


class WriteWatch:
    """The state of the last commits."""

    def __init__(self) -> None:
        self.refusal: str | None = None
        """Why new entries are refused now; None while they are taken."""
        self.failed: LedgerWriteError | None = None
        """Why commits fail and keep failing, though not for want of room; None again after one that succeeds."""
        self.is_failing = False
        """Whether the last commit failed."""
        self.is_short = False
        """Whether there was little room after the last commit."""
        self._failures = 0
        self._failing_since_s = 0.0
        self._refusing_since_s = 0.0
        self._logged_s = -math.inf
        self._is_logged = False

    def note(self, error: Exception | None, room: Room | None, now_s: float) -> str | None:
        """Take in how a commit ended.

        Args:
            error: Why it failed; None if it did not.
            room: The room after it; None where the system does not tell.
            now_s: A clock that never goes back.

        Returns:
            The line to log now, if any.
        """
        self.is_failing = error is not None
        self.is_short = room is not None and room.is_short(was_short=self.is_short)
        self._watch_failures(error, now_s)
        refusal = self._refusal(error, room)
        was_refusing, self.refusal = self.refusal is not None, refusal
        if refusal is not None:
            return self._refusal_to_log(refusal, now_s, was_refusing=was_refusing)
        if not was_refusing or not self._is_logged:
            return None
        self._is_logged = False
        return f"New messages are taken again, after {now_s - self._refusing_since_s:.0f} s"

    def _refusal_to_log(self, refusal: str, now_s: float, *, was_refusing: bool) -> str | None:
        if not was_refusing:
            self._refusing_since_s = now_s
        # A failure that comes and goes is logged once, too.
        if now_s - self._logged_s < LOG_SECONDS:
            return None
        self._logged_s, self._is_logged = now_s, True
        return f"New messages are refused; deliveries and acknowledgements go on. {refusal}"

    def _watch_failures(self, error: Exception | None, now_s: float) -> None:
        if error is None or isinstance(error, StoreFullError):
            self._failures, self.failed = 0, None
            return
        self._failures += 1
        if self._failures == 1:
            self._failing_since_s = now_s
        seconds = now_s - self._failing_since_s
        if self._failures >= FAILURES_MIN and seconds >= FAILING_SECONDS_MIN:
            self.failed = LedgerWriteError(
                f"The last {self._failures} commits failed, for {seconds:.0f} s now, though the log was opened again "
                f"meanwhile: {error}. Look at the disk"
            )
            self.failed.__cause__ = error

    def _refusal(self, error: Exception | None, room: Room | None) -> str | None:
        if isinstance(error, StoreFullError):
            return f"There is no room for the log: {error}. Make some, and it goes on by itself"
        if self.failed is not None:
            return str(self.failed)
        # A failure for another reason says nothing about room; one commit that succeeds does.
        if error is not None:
            return self.refusal
        if room is None or not self.is_short:
            return None
        return (
            f"The disk of the log has {room.free_bytes / _MIB:.1f} MiB free, and "
            f"{room.kept_bytes / _MIB:.1f} MiB are kept to acknowledge, trim and compact "
            "with. Make room, and it goes on by itself"
        )
