"""The cursors of a log that no service has open: their properties make snapshots an index.

All properties of all cursors change in one synced write, so after a crash the old index is there, or the new one.
Acknowledgements for many of them are one synced write as well, in the journal records that a live cursor writes.
`managed_ledger.cursors.cursor_properties` reads and writes properties alone, also beside a service, and here too.
"""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Self

from pyroaring import BitMap

from managed_ledger.cursors.cursor_properties import CursorName, CursorPropertiesFolder
from managed_ledger.cursors.cursor_records import encode_journal
from managed_ledger.disk import keys
from managed_ledger.disk.keys import Family
from managed_ledger.disk.reopening import ReopeningDatabase
from managed_ledger.errors import NameNotFoundError
from managed_ledger.names import find_cursor, find_topic
from postdate.index.acknowledged import Acknowledged, acknowledged_of, is_index_cursor
from postdate.index.ledger_ranges import LedgerExtent
from postdate.index.log_folder import LogFolder
from postdate.pipeline.publishing.selection import select
from snapshot_storage.bucket_key import parse_bucket_id
from snapshot_storage.inspection import is_bucket_property


class CursorLog:
    """The cursors of a log's folder, which is locked meanwhile; a context manager."""

    def __init__(self, folder: Path, opened: ReopeningDatabase | None = None) -> None:
        """Open the folder.

        Args:
            folder: The folder of the log.
            opened: The log in it, where it is open already; it is closed with this.

        Raises:
            StoreLockedError: A service has it open.
            LedgerError: It cannot be opened.
        """
        self.folder = folder
        self._folder = CursorPropertiesFolder(folder, is_read_only=False, opened=opened)
        self._database = self._folder.database
        log = LogFolder(folder, self._database)
        self._properties: dict[CursorName, dict[str, str]] = {}
        self._ids: dict[CursorName, int] = {}
        self._acknowledged: dict[CursorName, Acknowledged] = {}
        self._journal_sequences: dict[CursorName, int] = {}
        self._ledgers = log.ledgers()
        self._topics = log.topics()
        for topic in self._topics:
            cursors = log.cursors(topic)
            acknowledged = acknowledged_of(cursors, [ledger for ledger in self._ledgers if ledger.topic == topic])
            for name, (cursor_id, stored) in cursors.items():
                cursor = CursorName(topic, name)
                self._ids[cursor] = cursor_id
                self._properties[cursor] = stored.properties
                self._journal_sequences[cursor] = stored.journal_sequence
                self._acknowledged[cursor] = acknowledged[name]

    def names(self) -> list[CursorName]:
        """All subscriptions."""
        return sorted(self._ids)

    def topics(self) -> list[str]:
        """All topics, also those without a subscription."""
        return self._topics

    def resolve(self, name: CursorName) -> CursorName:
        """Return the log's own name of a subscription, however its users write it.

        Raises:
            NameNotFoundError: There is no such topic or subscription.
        """
        topic = find_topic(name.topic, self._topics)
        return CursorName(topic, find_cursor(name.cursor, self._cursors_of({topic}), f" of {topic}"))

    def _cursors_of(self, topics: Collection[str]) -> set[str]:
        return {name.cursor for name in self._ids if name.topic in topics}

    def selected(self, topics: Sequence[str] | None, cursors: Sequence[str] | None) -> list[CursorName]:
        """Return the cursors of a selection.

        Raises:
            NameNotFoundError: There is no such topic or subscription.
        """
        return select(self.names(), self._topics, topics, cursors).of(self.names())

    def with_own_index(self, topics: Sequence[str] | None, cursors: Sequence[str] | None) -> list[CursorName]:
        """Return the cursors of a selection that have an index; one that subscriptions share is the index cursor's.

        Raises:
            NameNotFoundError: There is no such topic or subscription.
            ValueError: A named subscription shares its index with others, which would be changed, too.
        """
        names = self.selected(topics, cursors)
        shared = {name.topic for name in self._ids if is_index_cursor(name.cursor)}
        sharing = [name for name in names if name.topic in shared and not is_index_cursor(name.cursor)]
        if sharing and cursors is not None:
            raise ValueError(f"{sharing[0]} shares its index with the topic's others: name the topic, and no cursor")
        return [name for name in names if name not in set(sharing)]

    def named_ids(self) -> set[int]:
        """The snapshots that any property of any cursor names, well-formed or not: these must not be deleted."""
        return {
            bucket_id
            for properties in self._properties.values()
            for key, value in properties.items()
            if is_bucket_property(key) and (bucket_id := parse_bucket_id(value)) is not None
        }

    def ledgers(self) -> list[LedgerExtent]:
        """All ledgers that have entries."""
        return self._ledgers

    def properties(self, cursor: CursorName) -> Mapping[str, str]:
        """The properties of a subscription.

        Raises:
            NameNotFoundError: There is no such subscription.
        """
        try:
            return self._properties[cursor]
        except KeyError:
            raise NameNotFoundError(f"The log has no subscription {cursor}") from None

    def acknowledged(self, cursor: CursorName) -> Acknowledged:
        """The acknowledgements of a subscription; of a shared index, those that all have."""
        return self._acknowledged[cursor]

    def put_properties(self, changed: Mapping[CursorName, Mapping[str, str]]) -> None:
        """Replace all properties of these subscriptions: all of them, durably, or none.

        Raises:
            LedgerError: None was replaced.
        """
        self._folder.put(changed)
        self._properties.update((cursor, dict(properties)) for cursor, properties in changed.items())

    def acknowledge(self, new: Mapping[CursorName, Mapping[int, BitMap]]) -> None:
        """Acknowledge entry ids by ledger for these subscriptions: all of them, durably, or none.

        One journal record each, which the next owner of the folder replays and folds.

        Raises:
            LedgerError: Nothing was acknowledged.
        """
        batch = self._database.new_batch()
        for cursor, bitmaps in new.items():
            known = self._acknowledged[cursor]
            key = keys.cursor_state_key(self._ids[cursor], keys.CURSOR_JOURNAL, self._journal_sequences[cursor])
            batch.put(Family.CURSORS, key, encode_journal(known.mark_delete, bitmaps))
        self._database.write(batch, sync=True)
        for cursor, bitmaps in new.items():
            self._journal_sequences[cursor] += 1
            self._acknowledged[cursor] = self._acknowledged[cursor].united(bitmaps)

    def close(self) -> None:
        """Let go of the folder."""
        self._folder.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
