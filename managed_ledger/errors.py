"""Errors that leave this package; all of them are `LedgerError`.

Callers branch on the class, never on the text. The texts say what was being done, to what, and
what the operator can do about it.
"""

from collections.abc import Mapping
from typing import Final

from pyroaring import BitMap

DAMAGE_REMEDY: Final = (
    "Restore the folder from a copy, or keep what is whole of it: "
    "`postdate check` says what is lost, `postdate ledger repair --yes` does it"
)


class LedgerError(Exception):
    """Base of every error of the log."""


class StoreLockedError(LedgerError):
    """Another process, or another store of this process, has the folder open."""


class StoreCorruptedError(LedgerError):
    """The bytes on disk are not the bytes that were written there."""


class StoreVersionError(LedgerError):
    """The folder was written by a version with another format."""


class StoreClosedError(LedgerError):
    """The store was closed."""


class StoreUnavailableError(LedgerError):
    """The folder could not be opened, read or written (permissions, space, a failing disk)."""


class StoreFullError(StoreUnavailableError):
    """There is no room on the disk; it goes on when there is some."""


class BackupError(LedgerError):
    """A backup cannot be made in a place, or is not one that can be restored."""


class BackupTakenError(BackupError):
    """Another backup to the same place is under way, or has been made meanwhile."""


class BundlesError(LedgerError):
    """The bundles of a data folder cannot be changed so, or a command needs to know which one is meant."""


class UnreadEntriesError(LedgerError):
    """Entries that were asked for and not read."""

    def __init__(self, text: str, entries: Mapping[int, BitMap]) -> None:
        super().__init__(text)
        self.entries = entries
        """All of them: entry ids by ledger id."""


class EntriesDamagedError(UnreadEntriesError, StoreCorruptedError):
    """Entries that are unreadable for good: the log is damaged where they are."""


class EntriesUnreadableError(UnreadEntriesError, StoreUnavailableError):
    """Entries that could not be read this time."""


class LedgerWriteError(LedgerError):
    """A write did not become durable; the positions it was for will never be readable."""


class LogFencedError(LedgerWriteError):
    """The log belongs to another owner, or is being given up; what was under way may be durable all the same.

    A call that waited for a commit gets `LedgerWriteError` with this as its cause: its answer is not known, where other
    failures say that nothing was stored.
    """


class AppendRefusedError(LedgerError):
    """New entries are refused until there is room; nothing was appended."""


class ManagedLedgerClosedError(LedgerError):
    """The managed ledger was closed or deleted."""


class CursorClosedError(LedgerError):
    """The cursor was deleted, or its managed ledger was closed."""


class NameNotFoundError(LedgerError):
    """No topic, or no cursor of the topics that are meant, has a name that was asked for."""


class CursorExistsError(LedgerError):
    """A cursor of this name exists, and its durability is not the one asked for."""
