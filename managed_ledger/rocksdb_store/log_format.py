"""The fragments of RocksDB's logs, and the one kind of damage to them that RocksDB does not survive.

A write-ahead log (`*.log`) and the list of files (`MANIFEST-*`) are blocks of 32 KiB, of fragments: a masked CRC32C,
the length, the type (whole, first, middle or last of a record), and that much data. The rest of a block is zeros.

A recycled log has types of its own. RocksDB writes them only where `recycle_log_file_num` is set, as in no folder here.
Where its reader meets such a type behind another fragment, it reads that fragment for ever, before it looks at the
checksum. Where it is the first one, the whole log counts as an older one and is left out without an error. One flipped
bit of a type is enough. So headers are looked at before RocksDB reads a log. All other damage is RocksDB's to find.
(RocksDB's `log_format.h` and `log_reader.cc`.)
"""

import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_BLOCK_BYTES: Final = 2**15
_FRAGMENT: Final = struct.Struct("<IHB")
"""The header of a fragment: its masked CRC32C, its length, its type."""
_FULL: Final = 1
"""The type of a fragment that is a whole record."""
_RECYCLED: Final = frozenset((5, 6, 7, 8, 11, 131))
"""The types of a record's fragments in a recycled log, and those of its timestamps' size and of the log before it."""
_MANIFEST: Final = re.compile(r"MANIFEST-\d+\n?")


def recycled_fragment_in(folder: Path) -> str | None:
    """Say where a log that RocksDB reads at opening has a fragment of a recycled log; None if nowhere.

    Folders, links to nowhere and files that are gone meanwhile are left to RocksDB.

    Raises:
        OSError: The system refuses.
    """
    found = next(_recycled_fragments(folder), None)
    return None if found is None else f"{found[0].name} has {_text(found[1], found[2])}"


def clear_recycled_fragments(folder: Path) -> Iterator[tuple[str, str]]:
    """Give each such fragment another type, so that RocksDB finds a wrong checksum; yield file and what it had.

    A file that is changed is made anew, so the folder may be one of links.

    Raises:
        OSError: The system refuses.
    """
    while (found := next(_recycled_fragments(folder), None)) is not None:
        path, offset, kind = found
        content = bytearray(path.read_bytes())
        content[offset + _FRAGMENT.size - 1] = _FULL
        path.unlink()
        path.write_bytes(content)
        yield path.name, f"it has {_text(offset, kind)}"


def _text(offset: int, kind: int) -> str:
    return f"at byte {offset} a fragment of type {kind}, which only a recycled log has"


def _recycled_fragments(folder: Path) -> Iterator[tuple[Path, int, int]]:
    """File, offset and type of the first one of each file."""
    for path in (*_list_of_files(folder), *sorted(folder.glob("*.log"))):
        try:
            # A file is read, not mapped: a disk that fails is an error then, and no signal.
            content = path.read_bytes() if path.is_file() else b""
        except FileNotFoundError:
            continue
        at = _recycled_header(content)
        if at is not None:
            yield path, at, content[at + _FRAGMENT.size - 1]


def _list_of_files(folder: Path) -> Iterator[Path]:
    current = folder / "CURRENT"
    name = current.read_bytes().decode(errors="replace") if current.is_file() else ""
    if _MANIFEST.fullmatch(name):
        yield folder / name.removesuffix("\n")


def _recycled_header(content: bytes) -> int | None:
    """Where the first header of a recycled log's fragment is."""
    for start in range(0, len(content), _BLOCK_BYTES):
        at = start
        last = min(start + _BLOCK_BYTES, len(content)) - _FRAGMENT.size
        while at <= last:
            _, length, kind = _FRAGMENT.unpack_from(content, at)
            if kind in _RECYCLED:
                return at
            if not length and not kind:
                # Zeros up to the end of the block.
                break
            at += _FRAGMENT.size + length
    return None
