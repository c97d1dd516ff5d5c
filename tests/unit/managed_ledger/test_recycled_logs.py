"""A fragment of a recycled log is found wherever RocksDB would read one, and nothing else is taken for one."""

import struct
from pathlib import Path

import pytest

from managed_ledger.rocksdb_store.log_format import recycled_fragment_in

BLOCK_BYTES = 32_768
RECYCLED = (5, 6, 7, 8, 11, 131)


def fragment(kind: int, length: int = 10) -> bytes:
    """A fragment whose data would look like a recycled one's header everywhere."""
    return struct.pack("<IHB", 17, length, kind) + b"\x05" * length


def log_of(folder: Path, content: bytes) -> str | None:
    (folder / "000004.log").write_bytes(content)
    return recycled_fragment_in(folder)


def found_at(offset: int, kind: int, name: str = "000004.log") -> str:
    return f"{name} has at byte {offset} a fragment of type {kind}, which only a recycled log has"


@pytest.mark.parametrize("kind", RECYCLED)
@pytest.mark.parametrize("place", ["first", "later", "last", "header alone"])
def test_a_recycled_fragment_is_found(tmp_path: Path, kind: int, place: str) -> None:
    before = b"" if place == "first" else fragment(1) * 3
    length = 10 if place != "header alone" else 0
    behind = fragment(1) if place in ("first", "later") else b""

    assert log_of(tmp_path, before + fragment(kind, length) + behind) == found_at(len(before), kind)


def test_any_other_type_is_left_to_rocksdb(tmp_path: Path) -> None:
    others = set(range(256)) - set(RECYCLED)

    assert {log_of(tmp_path, fragment(1) + fragment(kind) + fragment(4)) for kind in others} == {None}


@pytest.mark.parametrize("blocks", [1, 2, 31, 32, 33, 70])
@pytest.mark.parametrize("rest", range(10))
def test_each_block_is_read_from_its_begin(tmp_path: Path, blocks: int, rest: int) -> None:
    """Up to six bytes at the end of a block are no header, and zeros are none either."""
    block = fragment(1, BLOCK_BYTES - 7 - rest) + bytes(rest)
    content = block * blocks

    assert log_of(tmp_path, content + fragment(2)) is None
    assert log_of(tmp_path, content + fragment(6)) == found_at(len(content), 6)


TAILS = {
    "none": b"",
    "3 zeros": bytes(3),
    "7 zeros": bytes(7),
    "zeros": bytes(100),
    "blocks of zeros": bytes(2 * BLOCK_BYTES),
    "half a header": fragment(1)[:6],
    "half a fragment": fragment(1)[:12],
    "more than a block": fragment(3, 60_000)[:20_000],
}


@pytest.mark.parametrize("tail", TAILS.values(), ids=TAILS)
def test_a_torn_tail_is_no_recycled_log(tmp_path: Path, tail: bytes) -> None:
    assert log_of(tmp_path, fragment(1) * 5 + tail) is None


def test_of_the_lists_of_files_the_one_in_use_is_read(tmp_path: Path) -> None:
    (tmp_path / "MANIFEST-000005").write_bytes(fragment(1) + fragment(5))
    (tmp_path / "MANIFEST-000009").write_bytes(fragment(1))
    for current, found in (
        (b"MANIFEST-000009\n", None),
        (b"MANIFEST-000005\n", found_at(17, 5, "MANIFEST-000005")),
        (b"MANIFEST-000006\n", None),
        (b"../MANIFEST-000005\n", None),
        (b"\xff\x00", None),
    ):
        (tmp_path / "CURRENT").write_bytes(current)
        assert recycled_fragment_in(tmp_path) == found
