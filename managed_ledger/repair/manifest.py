"""The content of RocksDB's list of files (`MANIFEST-*`): the tables in use, and the numbers of the column families.

It is a log like the write-ahead log, of changes of the list; each is tags with values. Only files, families and the
last sequence number are taken from it. (RocksDB's `version_edit.cc`.)
"""

from dataclasses import dataclass, field

from managed_ledger.repair.varints import read_bytes, read_varint

_LENGTH_PREFIXED_MASK = 1 << 13
_NUMBERS = {2, 3, 9, 10, 203, 300}
_COMPARATOR, _LAST_SEQUENCE, _COMPACT_POINTER, _DELETED_FILE, _NEW_FILE = 1, 4, 5, 6, 103
_FAMILY, _ADDED_FAMILY, _DROPPED_FAMILY = 200, 201, 202
_TERMINATED = 1


@dataclass(slots=True)
class FileList:
    """Numbers of tables in use, with their families' numbers, the names of families, and how far tables came."""

    tables: dict[int, int] = field(default_factory=dict)
    families: dict[int, str] = field(default_factory=lambda: {0: "default"})
    last_sequence: int = 0
    """The newest change that was ever in a table. A change that only a write-ahead log has is not counted."""

    def apply(self, edit: bytes) -> None:
        """Take in one change.

        Raises:
            ValueError: The edit is of an unknown kind.
        """
        at, family = 0, 0
        added: list[int] = []
        deleted: list[int] = []
        while at < len(edit):
            tag, at = read_varint(edit, at)
            if tag == _FAMILY:
                family, at = read_varint(edit, at)
            elif tag == _ADDED_FAMILY:
                name, at = read_bytes(edit, at)
                self.families[family] = name.decode()
            elif tag == _DELETED_FILE:
                _, at = read_varint(edit, at)
                number, at = read_varint(edit, at)
                deleted.append(number)
            elif tag == _NEW_FILE:
                number, at = _new_file(edit, at)
                added.append(number)
            elif tag == _LAST_SEQUENCE:
                sequence, at = read_varint(edit, at)
                self.last_sequence = max(self.last_sequence, sequence)
            elif tag == _COMPACT_POINTER:
                _, at = read_varint(edit, at)
                _, at = read_bytes(edit, at)
            elif tag == _COMPARATOR or tag & _LENGTH_PREFIXED_MASK:
                _, at = read_bytes(edit, at)
            elif tag in _NUMBERS:
                _, at = read_varint(edit, at)
            elif tag != _DROPPED_FAMILY:
                raise ValueError(f"a change of kind {tag}")
        # A table that moves to another level is deleted and added in one change.
        for number in deleted:
            self.tables.pop(number, None)
        self.tables.update(dict.fromkeys(added, family))


def _new_file(edit: bytes, at: int) -> tuple[int, int]:
    _, at = read_varint(edit, at)
    number, at = read_varint(edit, at)
    _, at = read_varint(edit, at)
    for _ in range(2):
        _, at = read_bytes(edit, at)
    for _ in range(2):
        _, at = read_varint(edit, at)
    while True:
        tag, at = read_varint(edit, at)
        if tag == _TERMINATED:
            return number, at
        _, at = read_bytes(edit, at)
