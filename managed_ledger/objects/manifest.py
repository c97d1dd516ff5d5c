"""The manifest: the one object that says which others count. It is changed last, and as a whole.

    manifest               epoch, owner, start, fences, the tables and the small files of a checkpoint
    table/<epoch>-<k>      RocksDB's file k, stored by the owner of that epoch; no name is used twice

A writer first claims the place: it changes the manifest to the next epoch and to its own name, and leaves the
checkpoint in it as it is. So two writers never make objects of one name, and of two at once the later claim wins.
`start` and `fences` are those of a log of objects, of which there is none in a backup.
"""

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from managed_ledger.errors import BackupError

MANIFEST: Final = "manifest"
TABLES: Final = "table/"
FORMAT: Final = "postdate objects 1"
_FILE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_OBJECT_NAME: Final = re.compile(r"table/(\d+)-\d+")


class TableObject(NamedTuple):
    """A file of RocksDB's as an object."""

    name: str
    size_bytes: int
    sha256: str
    end_sha256: str
    """Of its last bytes, which tell whether a table is the same without reading all of it (`checkpoints`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The content of a manifest; the default is that of a place where nothing is.

    Attributes:
        epoch: How often the place was claimed.
        owner: The last claimant, a random name.
        start: The first number of the log that counts beside the tables.
        fences: The numbers that are fences.
        log: RocksDB's id of the log, empty before the first claim.
        made_at_ms: When the checkpoint was made.
        tables: Tables and write-ahead logs, by RocksDB's names.
        files: The small files, with their content.
    """

    epoch: int = 0
    owner: str = ""
    start: int = 1
    fences: tuple[int, ...] = ()
    log: str = ""
    made_at_ms: int = 0
    tables: Mapping[str, TableObject] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def size_bytes(self) -> int:
        """All tables together."""
        return sum(table.size_bytes for table in self.tables.values())

    def encode(self) -> bytes:
        """Return the bytes of the object."""
        content = {
            "format": FORMAT,
            **{name: getattr(self, name) for name in ("epoch", "owner", "start", "fences", "log", "made_at_ms")},
            "tables": {name: table._asdict() for name, table in self.tables.items()},
            "files": {name: base64.b64encode(data).decode() for name, data in self.files.items()},
        }
        return json.dumps(content | {"sha256": _digest(content)}, indent=1).encode()

    @classmethod
    def decode(cls, data: bytes, place: str) -> "Manifest":
        """Read the bytes of the object.

        Args:
            data: The bytes.
            place: Where they are from, for the error.

        Raises:
            BackupError: They are of another format, or not what was written.
        """
        try:
            content = json.loads(data)
            if content["format"] != FORMAT:
                raise BackupError(
                    f"{place} has the format {content['format']!r}, and this version reads {FORMAT!r}: use the version "
                    "that wrote it"
                )
            if content.pop("sha256") != _digest(content):
                raise ValueError("its checksum is another")
            tables = {_file_name(name): TableObject(**one) for name, one in content.pop("tables").items()}
            files = {_file_name(name): base64.b64decode(text) for name, text in content.pop("files").items()}
            del content["format"]
            return cls(**content | {"fences": tuple(content["fences"]), "tables": tables, "files": files})
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise BackupError(f"The file {MANIFEST} of {place} is damaged, or not Postdate's: {error}") from error


def table_name(epoch: int, file: str) -> str:
    """Return the name of the object of a file of RocksDB's.

    >>> table_name(3, "000012.sst")
    'table/00000003-000012'
    """
    return f"{TABLES}{epoch:08}-{file.partition('.')[0]}"


def epoch_of(table: str) -> int | None:
    """Return the epoch in the name of a table's object, None for another object.

    >>> epoch_of("table/00000003-000012"), epoch_of("table/notes.txt")
    (3, None)
    """
    found = _OBJECT_NAME.fullmatch(table)
    return None if found is None else int(found[1])


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _file_name(name: str) -> str:
    """Refuse what is no name of RocksDB's: a file outside of the folder could be meant."""
    if not _FILE_NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name of a file")
    return name
