"""The log in a survey: the owners of its ledgers, the lost entries, and the cursors without their acknowledgements.

Pure decisions. An entry is kept if its payload is whole: its header can be made from it. An acknowledgement that is
lost means that a message comes again, never that one is lost.
"""

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

from pyroaring import BitMap

from managed_ledger.cursors import cursor_records
from managed_ledger.cursors.cursor_state import prefix
from managed_ledger.disk import keys, meta_copies
from managed_ledger.disk.keys import Family
from managed_ledger.ledgers import Ledger
from managed_ledger.positions.position import Position
from managed_ledger.repair.survey import StoredBlock, Survey

_OWNER = struct.Struct("<Q")


@dataclass(slots=True)
class LedgerFinding:
    """One ledger of a topic, and its remaining entries."""

    topic: str
    owner_id: int
    ledger: Ledger
    headers: list[StoredBlock]
    payloads: list[StoredBlock]
    lost: BitMap
    """Entries that its record counts and that are nowhere."""
    lost_before: BitMap
    """Entries that an earlier repair found lost."""
    proven: BitMap
    """Entries of damaged blocks that are whole by themselves."""
    without_header: BitMap
    """Entries that are whole and whose header has to be made from them."""


@dataclass(slots=True)
class CursorFinding:
    """A subscription of which something is lost."""

    topic: str
    cursor: str
    what: str


@dataclass(slots=True)
class Findings:
    """The parts of a damaged log that are whole, and the losses."""

    topics: dict[int, str] = field(default_factory=dict)
    """Names by owner id."""
    ledgers: list[LedgerFinding] = field(default_factory=list)
    cursors: list[CursorFinding] = field(default_factory=list)
    meta: dict[bytes, bytes] = field(default_factory=dict)
    cursor_rows: dict[bytes, bytes] = field(default_factory=dict)
    unowned: dict[int, int] = field(default_factory=dict)
    """Entries by ledger id of ledgers whose topic is not known."""
    next_ids: tuple[int, int] = (1, 1)
    """The next ledger id and owner id that were never given out."""

    @property
    def lost_entries(self) -> int:
        """How many entries are lost, as far as they can be counted."""
        return sum(len(one.lost) for one in self.ledgers) + sum(self.unowned.values())


def find(survey: Survey) -> Findings:
    """Find the topics, ledgers and cursors of a log, and the entries that each has lost."""
    found = Findings(meta=_meta(survey))
    found.topics = {
        _OWNER.unpack(value)[0]: key[1:].decode(errors="replace")
        for key, value in found.meta.items()
        if key[:1] == b"m"
    }
    records: dict[int, list[tuple[int, Ledger]]] = {}
    for key, value in sorted(found.meta.items()):
        if key[:1] == b"l":
            owner_id, ledger_id = keys.pair.unpack(key[1:])
            if owner_id in found.topics:
                records.setdefault(owner_id, []).append((ledger_id, Ledger.decode(ledger_id, value)))
    for owner_id, ledgers in records.items():
        for ledger_id, ledger in ledgers:
            is_last = ledger_id == ledgers[-1][0]
            found.ledgers.append(_ledger(survey, found, owner_id, ledger, is_last=is_last))
    owned = {one.ledger.ledger_id for one in found.ledgers}
    if Family.META in survey.damaged:
        # Where `meta` is whole, such ledgers were trimmed, and only their space is not given back yet.
        found.unowned = {
            ledger_id: sum(block.entries for block in blocks.values())
            for ledger_id, blocks in survey.payloads.items()
            if ledger_id not in owned
        }
    _find_cursors(survey, found)
    found.next_ids = _next_ids(survey, found)
    return found


def _meta(survey: Survey) -> dict[bytes, bytes]:
    """Rows of `meta`; where some may be missing, their copies say what there was."""
    meta = survey.older_meta | survey.meta
    if Family.META not in survey.damaged:
        return meta
    copies = {
        key[len(meta_copies.PREFIX) :]: value
        for key, value in survey.cursors.items()
        if key.startswith(meta_copies.PREFIX)
    }
    if copies and Family.CURSORS not in survey.damaged:
        # Rows of `meta` may be older than their copies, or deleted since.
        return {key: value for key, value in meta.items() if not meta_copies.has_copy(key)} | copies
    return survey.older_meta | copies | survey.meta


def _ledger(survey: Survey, found: Findings, owner_id: int, ledger: Ledger, *, is_last: bool) -> LedgerFinding:
    ledger_id = ledger.ledger_id
    payloads = sorted(survey.payloads.get(ledger_id, {}).values())
    headers = sorted(survey.headers.get(ledger_id, {}).values())
    if ledger.is_open and survey.damaged:
        # The lost part may be the record of the last commit, or the one that closed it.
        ledger = _grown(ledger, payloads)
        ledger.is_open = is_last
    counted = prefix(ledger.entries)
    there = covered(payloads) & counted
    proven = BitMap(entry_id for other_id, entry_id in survey.proven if other_id == ledger_id) & counted
    proven -= there
    there |= proven
    stored = found.meta.get(keys.lost_entries_key(owner_id, ledger_id))
    lost_before = BitMap() if stored is None else BitMap.deserialize(stored)
    return LedgerFinding(
        found.topics[owner_id],
        owner_id,
        ledger,
        headers,
        payloads,
        lost=counted - there - lost_before,
        lost_before=lost_before,
        proven=proven,
        without_header=there - covered(headers) - proven,
    )


def _grown(ledger: Ledger, payloads: list[StoredBlock]) -> Ledger:
    """The ledger with what follows its last counted entry without a gap."""
    entries = ledger.entries
    for block in payloads:
        if block.first <= entries < block.end:
            entries = block.end
    if entries > ledger.entries:
        ledger.durable = ledger.written = ledger.durable._replace(entries=entries)
        ledger.entries = ledger.appended = entries
    return ledger


def _find_cursors(survey: Survey, found: Findings) -> None:
    by_cursor: dict[int, list[tuple[bytes, bytes]]] = {}
    for key, value in sorted(survey.cursors.items()):
        if not key.startswith(meta_copies.PREFIX):
            found.cursor_rows[key] = value
            by_cursor.setdefault(int.from_bytes(key[:8]), []).append((key, value))
    is_damaged = Family.CURSORS in survey.damaged
    for topic, name, cursor_id in _cursor_names(found):
        what = _state_of(by_cursor.get(cursor_id, []))
        if what is None and not is_damaged:
            continue
        if what is not None:
            _start_over(found, cursor_id, topic)
        found.cursors.append(CursorFinding(topic, name, what or "some acknowledgements may be lost"))


def _cursor_names(found: Findings) -> Iterator[tuple[str, str, int]]:
    for key, value in sorted(found.meta.items()):
        if key[:1] == b"c" and int.from_bytes(key[1:9]) in found.topics:
            topic = found.topics[int.from_bytes(key[1:9])]
            yield topic, key[9:].decode(errors="replace"), _OWNER.unpack(value)[0]


def _state_of(rows: list[tuple[bytes, bytes]]) -> str | None:
    """Return the fault in the records of a cursor."""
    try:
        if cursor_records.decode(rows) is not None:
            return None
    except (struct.error, ValueError, LookupError):
        pass
    return "its acknowledgements are lost: everything kept is delivered again"


def _start_over(found: Findings, cursor_id: int, topic: str) -> None:
    """Let a cursor begin at the first entry kept, with the properties that it had if they are there."""
    properties_key = keys.cursor_state_key(cursor_id, keys.CURSOR_PROPERTIES)
    properties = found.cursor_rows.get(properties_key, b"{}")
    for key in [key for key in found.cursor_rows if int.from_bytes(key[:8]) == cursor_id]:
        del found.cursor_rows[key]
    first = min((one.ledger.ledger_id for one in found.ledgers if one.topic == topic), default=0)
    state_key = keys.cursor_state_key(cursor_id, keys.CURSOR_MARK_DELETE)
    found.cursor_rows[state_key] = cursor_records.encode_position(Position(first, -1))
    try:
        json.loads(properties)
    except ValueError:
        properties = b"{}"
    found.cursor_rows[properties_key] = properties


def _next_ids(survey: Survey, found: Findings) -> tuple[int, int]:
    """Ids beyond all that anything speaks of, and beyond those that the missing changes may have spoken of."""
    counters = found.meta.get(keys.COUNTERS_KEY)
    next_ledger_id, next_owner_id = struct.unpack("<QQ", counters) if counters is not None else (1, 1)
    ledger_ids = {*survey.payloads, *survey.headers, *(one.ledger.ledger_id for one in found.ledgers)}
    owner_ids = {
        _OWNER.unpack(value)[0]
        for key, value in found.meta.items()
        if key[:1] in (b"c", b"m") and key != keys.COUNTERS_KEY
    }
    margin = survey.missing_writes + (1_000 if survey.damaged else 0)
    return (
        max(next_ledger_id, max(ledger_ids, default=0) + 1) + margin,
        max(next_owner_id, max(owner_ids, default=0) + 1) + margin,
    )


def covered(blocks: list[StoredBlock]) -> BitMap:
    """The entries that blocks have."""
    entry_ids = BitMap()
    for block in blocks:
        entry_ids.add_range(block.first, block.end)
    return entry_ids
