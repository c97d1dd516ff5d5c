"""Store here what a source gives, in portions, each message once by its id; and remember in a file what is stored.

The service replaces a scheduled message of the same id, but does not know the ids of what it has delivered. So the file
is what keeps a second run from bringing delivered messages again. A portion is remembered once the service has stored
it: where a run is cut off in between, the next one replaces that portion by itself.
"""

import base64
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from managed_ledger.positions.value_types import Json
from postdate.moving_in.messages import Found, Left, MovingInError, Waiting
from postdate.scheduling.errors import ScheduleRequestError

PORTION_MESSAGES: Final = 500
PORTION_BYTES: Final = 1 << 20
NAMES_MAX: Final = 20
"""How many messages that are left are named, for each reason."""

Post = Callable[[Sequence[Json]], object]
"""Schedules messages at the service, all or none."""

_TABLES: Final = (
    "CREATE TABLE IF NOT EXISTS service (url TEXT)",
    "CREATE TABLE IF NOT EXISTS stored"
    " (topic TEXT, id TEXT, deliver_at_ms INTEGER, PRIMARY KEY (topic, id)) WITHOUT ROWID",
)
_REFUSES_A_MESSAGE: Final = (400, 413, 422)
"""Statuses by which the service refuses what a message is, not whom or where."""


class StoredBefore:
    """What is stored already, in a file of SQLite that one run at a time can use. A dry run does not make or change it.

    Args:
        path: The file.
        url: The service that messages come to. A file has one: what is stored at another is not known by it.
        topic: The topic there.
        is_dry_run: Whether this is a dry run.

    Raises:
        MovingInError: Another run has the file, it is of a service at another address, or it cannot be used.
    """

    def __init__(self, path: Path, url: str, topic: str, *, is_dry_run: bool) -> None:
        self._path, self._topic, self._is_dry_run = path, topic, is_dry_run
        mode = "memory" if is_dry_run and not path.exists() else "rwc"
        try:
            self._file = sqlite3.connect(f"{path.absolute().as_uri()}?mode={mode}", timeout=0, uri=True)
            self._file.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._file.execute("BEGIN EXCLUSIVE")
            for table in _TABLES:
                self._file.execute(table)
            (known,) = self._file.execute("SELECT url FROM service").fetchone() or (None,)
            if known is None:
                self._file.execute("INSERT INTO service VALUES (?)", (url,))
            self._commit()
        except sqlite3.Error as error:
            raise MovingInError(f"{path}, which remembers what is stored, cannot be used: {error}") from error
        if known not in (None, url):
            self._file.close()
            raise MovingInError(
                f"{path} is of the service at {known}, not {url}: give the same --url or another --state"
            )

    def __enter__(self) -> "StoredBefore":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def has(self, message: Waiting) -> bool:
        """Whether a message is stored for the time that it has now."""
        asked = (self._topic, message.id)
        row = self._file.execute("SELECT deliver_at_ms FROM stored WHERE topic = ? AND id = ?", asked).fetchone()
        return row is not None and row[0] == message.deliver_at_ms

    def add(self, messages: Iterable[Waiting]) -> None:
        """Remember messages.

        Raises:
            MovingInError: The file cannot be written.
        """
        rows = [(self._topic, message.id, message.deliver_at_ms) for message in messages]
        try:
            self._file.executemany("INSERT OR REPLACE INTO stored VALUES (?, ?, ?)", rows)
            self._commit()
        except sqlite3.Error as error:
            raise MovingInError(f"{self._path}: {error}") from error

    def _commit(self) -> None:
        if not self._is_dry_run:
            self._file.commit()


@dataclass
class Imported:
    """What became of the messages of a source."""

    stored: int = 0
    """Of a dry run, how many would be."""
    stored_before: int = 0
    """Also those that came twice."""
    left: dict[str, int] = field(default_factory=dict)
    """How many stay at the source, by the reason."""
    names: dict[str, list[str]] = field(default_factory=dict)
    """The first of these."""

    def leave(self, left: Left) -> None:
        """Count a message that stays."""
        self.left[left.reason] = self.left.get(left.reason, 0) + 1
        names = self.names.setdefault(left.reason, [])
        if len(names) < NAMES_MAX:
            names.append(left.name)


def import_messages(
    found: Found, post: Post | None, before: StoredBefore, show: Callable[[Imported], object]
) -> Imported:
    """Store the messages of a source.

    Args:
        found: The messages.
        post: Stores a portion; None for a dry run.
        before: What is stored already.
        show: Called after each portion.

    Raises:
        MovingInError: The source fails.
        ScheduleRequestError: The service refuses, for another reason than one message.
        ServiceUnavailableError: It does not answer; the same call goes on.
    """
    imported = Imported()
    portion: dict[str, Waiting] = {}
    size_bytes = 0
    for one in found:
        if isinstance(one, Left):
            imported.leave(one)
        elif before.has(one):
            imported.stored_before += 1
            if post is not None and one.acknowledge is not None:
                one.acknowledge()
        else:
            portion[one.id] = one
            size_bytes += len(one.payload)
        if len(portion) >= PORTION_MESSAGES or size_bytes >= PORTION_BYTES:
            _store([*portion.values()], post, before, imported)
            portion, size_bytes = {}, 0
            show(imported)
    _store([*portion.values()], post, before, imported)
    return imported


def _store(messages: Sequence[Waiting], post: Post | None, before: StoredBefore, imported: Imported) -> None:
    """Store a portion; where it is refused, each message alone, so that a bad one stays and keeps no other."""
    if post is not None and messages:
        try:
            post([_line_of(message) for message in messages])
        except ScheduleRequestError as error:
            if error.status not in _REFUSES_A_MESSAGE:
                raise
            if len(messages) == 1:
                # The service's text has the size, which tells apart what is of a kind.
                reason = "it is larger than maxMessageSize" if error.status == 413 else str(error)
                imported.leave(Left(messages[0].id, reason))
            for message in messages if len(messages) > 1 else ():
                _store([message], post, before, imported)
            return
    before.add(messages)
    imported.stored += len(messages)
    for message in messages:
        if post is not None and message.acknowledge is not None:
            message.acknowledge()


def _line_of(message: Waiting) -> Json:
    when = {} if message.deliver_at_ms is None else {"deliverAtMs": message.deliver_at_ms}
    key = {} if message.key is None else {"key": message.key}
    payload = base64.b64encode(message.payload).decode()
    return {"id": message.id, "payloadBase64": payload, "properties": dict(message.properties), **key, **when}
