"""Compare ways to lay entries out in RocksDB: what `managed_ledger` writes was chosen by this table.

Layouts, each with headers in one column family and payloads in another (`per-commit` uses one):

* `per-entry`: one header key and one payload key per entry.
* `per-commit`: one value per commit, header rows first and then the payloads.
* `blocks`: per commit one block of 32-byte header rows, and payload blocks of at most 16 KiB. Chosen.
* `blocks-columns`: the same, with the header block cut into columns instead of rows.

Keys are `(ledger_id, first_entry_id)` big endian, so `seek_for_prev` finds the block of an entry. Run
`python -m benchmarks.log_layout --messages 60000 --repeats 4`; half of each payload is random, the other half is
the same text. Figures of November 2026 (2 cores, shared; CPython 3.11, rocksdict 0.3.29): microseconds a message
written with a sync per commit, a row scanned, or a random read; bytes a message on disk after compaction with LZ4.

    layout          per commit      write    headers   payloads  header at payload at     disk B
    per-entry             1000       1.30       0.34       0.45       1.11       1.26     136.14
    per-commit            1000       0.84       0.02       0.10       4.54       7.38     119.62
    blocks                1000       0.94       0.01       0.10       2.67       2.69     121.39
    blocks-columns        1000       0.90       0.01       0.10       7.18       2.73     120.42
    per-entry              100       3.28       0.35       0.46       1.12       1.28     136.17
    per-commit             100       2.91       0.03       0.10       2.53       3.19     120.98
    blocks                 100       2.50       0.01       0.12       2.21       2.64     121.94
    blocks-columns         100       2.83       0.04       0.12       6.75       2.61     119.22
    per-entry               10      18.58       0.32       0.44       1.10       1.23     136.78
    per-commit              10      19.37       0.11       0.26       2.39       2.77     124.38
    blocks                  10      18.93       0.04       0.23       2.34       2.53     124.75
    blocks-columns          10      23.45       0.36       0.25       6.98       2.59     120.23

One key per entry reads a single entry in half the time, but headers are scanned far more often than that, and there
it is 8 to 34 times slower. Columns save 1 to 4 % of disk and cost too much at small commits and single reads. One
value per commit drags every payload along when only headers are wanted.
"""

import argparse
import random
import shutil
import struct
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path

import numpy as np
from rocksdict import DBCompressionType, Options, Rdict, WriteBatch, WriteOptions

LEDGER_ID = 7
PAYLOAD_BLOCK_BYTES = 16 * 1024
KEY = struct.Struct(">QQ")
ROW = np.dtype(
    [
        ("deliver_at_ms", "<i8"),
        ("publish_time_ms", "<i8"),
        ("sticky_hash", "<i4"),
        ("size", "<i4"),
        ("message_count", "<i4"),
        ("reserved", "<u4"),
    ]
)
PACK_ROW = struct.Struct("<qqiiiI").pack
OFFSET_PAIR = struct.Struct("<2I")


def pack_block(payloads: Sequence[bytes]) -> bytes:
    """Offsets of every payload from the start of the block, then the payloads."""
    head = 4 * (len(payloads) + 1)
    offsets = accumulate(map(len, payloads), initial=head)
    return b"".join((struct.pack(f"<{len(payloads) + 1}I", *offsets), *payloads))


def payload_in(block: bytes, index: int) -> bytes:
    """The payload at `index` without decoding the others."""
    start, end = OFFSET_PAIR.unpack_from(block, 4 * index)
    return block[start:end]


def payloads_of(block: bytes) -> list[bytes]:
    """Every payload of a block."""
    count = struct.unpack_from("<I", block)[0] // 4 - 1
    offsets = struct.unpack_from(f"<{count + 1}I", block)
    return [block[offsets[i] : offsets[i + 1]] for i in range(count)]


class Layout:
    """One folder with two column families, and how entries go in and come out."""

    def __init__(self, path: Path) -> None:
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        options.create_missing_column_families(True)
        family = Options(raw_mode=True)
        family.set_compression_type(DBCompressionType.lz4())
        self.db = Rdict(str(path), options, column_families={"headers": family, "payloads": family})
        self.headers = self.db.get_column_family("headers")
        self.payloads = self.db.get_column_family("payloads")
        self.headers_handle = self.db.get_column_family_handle("headers")
        self.payloads_handle = self.db.get_column_family_handle("payloads")

    def put(self, batch: WriteBatch, first: int, rows: bytes, payloads: Sequence[bytes]) -> None:
        """Add one commit to the batch."""
        raise NotImplementedError

    def scan_headers(self) -> int:
        """Read every header row in order; returns how many."""
        raise NotImplementedError

    def scan_payloads(self) -> int:
        """Read every payload in order; returns how many."""
        raise NotImplementedError

    def header_at(self, entry_id: int) -> bytes:
        """One header row."""
        raise NotImplementedError

    def payload_at(self, entry_id: int) -> bytes:
        """One payload."""
        raise NotImplementedError

    def close(self) -> None:
        """Close column families first: RocksDB keeps its lock while one is open."""
        del self.headers_handle, self.payloads_handle
        self.headers.close()
        self.payloads.close()
        self.db.close()


def scan(family: Rdict) -> Iterator[tuple[bytes, bytes]]:
    """Every key and value; unlike `items()` this reports a damaged block."""
    rows = family.iter()
    rows.seek_to_first()
    while rows.valid():
        yield rows.key(), rows.value()
        rows.next()
    rows.status()


def block_before(family: Rdict, entry_id: int) -> tuple[int, bytes]:
    """First entry id and value of the block that covers an entry."""
    rows = family.iter()
    rows.seek_for_prev(KEY.pack(LEDGER_ID, entry_id))
    return KEY.unpack(rows.key())[1], rows.value()


class PerEntry(Layout):
    """One header key and one payload key per entry."""

    def put(self, batch: WriteBatch, first: int, rows: bytes, payloads: Sequence[bytes]) -> None:
        for index, payload in enumerate(payloads):
            key = KEY.pack(LEDGER_ID, first + index)
            batch.put(key, rows[32 * index : 32 * index + 32], self.headers_handle)
            batch.put(key, payload, self.payloads_handle)

    def scan_headers(self) -> int:
        return len(np.frombuffer(b"".join(value for _, value in scan(self.headers)), ROW))

    def scan_payloads(self) -> int:
        return len([value for _, value in scan(self.payloads)])

    def header_at(self, entry_id: int) -> bytes:
        return bytes(self.headers.get(KEY.pack(LEDGER_ID, entry_id)) or b"")

    def payload_at(self, entry_id: int) -> bytes:
        return bytes(self.payloads.get(KEY.pack(LEDGER_ID, entry_id)) or b"")


class PerCommit(Layout):
    """One value per commit: the row count, the rows, the payloads."""

    def put(self, batch: WriteBatch, first: int, rows: bytes, payloads: Sequence[bytes]) -> None:
        value = b"".join((struct.pack("<I", len(payloads)), rows, pack_block(payloads)))
        batch.put(KEY.pack(LEDGER_ID, first), value, self.payloads_handle)

    def scan_headers(self) -> int:
        rows = (value[4 : 4 + 32 * struct.unpack_from("<I", value)[0]] for _, value in scan(self.payloads))
        return len(np.frombuffer(b"".join(rows), ROW))

    def scan_payloads(self) -> int:
        return sum(len(payloads_of(self._block(value))) for _, value in scan(self.payloads))

    def header_at(self, entry_id: int) -> bytes:
        first, value = block_before(self.payloads, entry_id)
        return value[4 + 32 * (entry_id - first) : 36 + 32 * (entry_id - first)]

    def payload_at(self, entry_id: int) -> bytes:
        first, value = block_before(self.payloads, entry_id)
        return payload_in(self._block(value), entry_id - first)

    @staticmethod
    def _block(value: bytes) -> bytes:
        return value[4 + 32 * struct.unpack_from("<I", value)[0] :]


class Blocks(Layout):
    """Per commit one block of header rows, and payload blocks of at most 16 KiB."""

    def put(self, batch: WriteBatch, first: int, rows: bytes, payloads: Sequence[bytes]) -> None:
        batch.put(KEY.pack(LEDGER_ID, first), self.pack_rows(rows), self.headers_handle)
        start = size = 0
        for index, payload in enumerate(payloads):
            if index > start and size + len(payload) > PAYLOAD_BLOCK_BYTES:
                batch.put(
                    KEY.pack(LEDGER_ID, first + start),
                    pack_block(payloads[start:index]),
                    self.payloads_handle,
                )
                start, size = index, 0
            size += len(payload)
        batch.put(KEY.pack(LEDGER_ID, first + start), pack_block(payloads[start:]), self.payloads_handle)

    def scan_headers(self) -> int:
        return len(np.frombuffer(b"".join(value for _, value in scan(self.headers)), ROW))

    def scan_payloads(self) -> int:
        return sum(len(payloads_of(value)) for _, value in scan(self.payloads))

    def header_at(self, entry_id: int) -> bytes:
        first, value = block_before(self.headers, entry_id)
        return value[32 * (entry_id - first) : 32 * (entry_id - first) + 32]

    def payload_at(self, entry_id: int) -> bytes:
        first, value = block_before(self.payloads, entry_id)
        return payload_in(value, entry_id - first)

    def pack_rows(self, rows: bytes) -> bytes:
        """How header rows become a header block."""
        return rows


class BlocksColumns(Blocks):
    """Like `Blocks`, with the header block in columns."""

    def pack_rows(self, rows: bytes) -> bytes:
        table = np.frombuffer(rows, ROW)
        return b"".join(table[name].tobytes() for name in ROW.names or ())

    def scan_headers(self) -> int:
        columns = [self._columns(value) for _, value in scan(self.headers)]
        return len(next(np.concatenate(parts) for parts in zip(*columns, strict=True)))

    def header_at(self, entry_id: int) -> bytes:
        first, value = block_before(self.headers, entry_id)
        return b"".join(column[entry_id - first].tobytes() for column in self._columns(value))

    @staticmethod
    def _columns(value: bytes) -> list[np.ndarray]:
        count, offset, columns = len(value) // 32, 0, []
        for name in ROW.names or ():
            columns.append(np.frombuffer(value, ROW[name], count, offset))
            offset += count * ROW[name].itemsize
        return columns


LAYOUTS: dict[str, type[Layout]] = {
    "per-entry": PerEntry,
    "per-commit": PerCommit,
    "blocks": Blocks,
    "blocks-columns": BlocksColumns,
}


def write(layout: Layout, *, messages: int, per_commit: int, payload_bytes: int, seed: int) -> float:
    """Append with one synced write per commit; returns seconds spent in packing and writing."""
    source = random.Random(seed)
    text = (b'{"order": 1234, "state": "waiting for delivery", "shop": "north"} ' * 1024)[: payload_bytes // 2]
    synced = WriteOptions()
    synced.sync = True
    seconds = 0.0
    for first in range(0, messages, per_commit):
        count = min(per_commit, messages - first)
        payloads = [source.randbytes(payload_bytes - len(text)) + text for _ in range(count)]
        now_ms = 1_700_000_000_000 + first
        started = time.perf_counter()
        rows = b"".join(
            [PACK_ROW(now_ms + 1000 * (i % 3600), now_ms, i * 7919 % 2**31, payload_bytes, 1, 0) for i in range(count)]
        )
        batch = WriteBatch(raw_mode=True)
        layout.put(batch, first, rows, payloads)
        layout.db.write(batch, synced)
        seconds += time.perf_counter() - started
    return seconds


def seconds_of(work: Callable[[], object]) -> float:
    """Wall time of one call."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def compact(layout: Layout) -> None:
    """Bring everything into its final place, so that sizes and reads can be compared."""
    for family in (layout.headers, layout.payloads):
        family.flush()
        family.compact_range(None, None)


def measure(name: str, per_commit: int, arguments: argparse.Namespace) -> dict[str, float]:
    """One row of the table."""
    folder = Path(tempfile.mkdtemp(prefix="log-layout-", dir=arguments.folder))
    try:
        layout = LAYOUTS[name](folder / "db")
        messages = arguments.messages
        written = write(
            layout,
            messages=messages,
            per_commit=per_commit,
            payload_bytes=arguments.payload_bytes,
            seed=arguments.seed,
        )
        compact(layout)
        picks = [random.Random(arguments.seed + 1).randrange(messages) for _ in range(arguments.reads)]
        assert layout.scan_headers() == layout.scan_payloads() == messages
        result = {
            "write": written / messages,
            "headers": seconds_of(layout.scan_headers) / messages,
            "payloads": seconds_of(layout.scan_payloads) / messages,
            "header at": seconds_of(lambda: [layout.header_at(pick) for pick in picks]) / len(picks),
            "payload at": seconds_of(lambda: [layout.payload_at(pick) for pick in picks]) / len(picks),
        }
        result = {column: value * 1e6 for column, value in result.items()}
        layout.close()
        result["disk B"] = sum(file.stat().st_size for file in folder.rglob("*.sst")) / messages
        return result
    finally:
        shutil.rmtree(folder)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Compare layouts of the log on RocksDB")
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--payload-bytes", type=int, default=200)
    parser.add_argument("--commits", type=int, nargs="+", default=[1000, 100, 10], help="messages per synced write")
    parser.add_argument("--reads", type=int, default=10_000, help="random reads")
    parser.add_argument("--layouts", nargs="+", choices=LAYOUTS, default=list(LAYOUTS))
    parser.add_argument("--folder", type=Path, help="where to write; a temporary folder by default")
    parser.add_argument("--repeats", type=int, default=1, help="runs, of which the best is shown per column")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    columns = ("write", "headers", "payloads", "header at", "payload at", "disk B")
    print(f"{'layout':15} {'per commit':>10} " + " ".join(f"{column:>10}" for column in columns))
    for per_commit in arguments.commits:
        for name in arguments.layouts:
            runs = [measure(name, per_commit, arguments) for _ in range(arguments.repeats)]
            row = {column: min(run[column] for run in runs) for column in columns}
            print(f"{name:15} {per_commit:10d} " + " ".join(f"{row[column]:10.2f}" for column in columns))


if __name__ == "__main__":
    main()
