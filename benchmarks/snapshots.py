"""Compare snapshot storages: RocksDB with plain files, S3 at 20 ms a call, and ways to compress.

`python -m benchmarks snapshots` creates, reads a segment of, recovers and deletes the same snapshots in each storage,
and prints milliseconds for each, calls and bytes of a recovery, and RocksDB's ratio to its peer. The peer is one file
per snapshot, in the bytes that S3 gets (`objects.format`): written to a temporary file, synced, renamed, and the
folder synced, which is the least that gives the same promise. S3 is versitygw on the same disk (`make s3-servers`), and
20 ms are slept before each call is sent. Storages take turns in each round, so that what else the machine does falls
on all of them.

`python -m benchmarks snapshots compression` writes 20 buckets of 50,000 rows to RocksDB with each way to compress,
compacts, and prints bytes a row on the disk and milliseconds to read a bucket, over four laws of delay.
"""

import argparse
import asyncio
import contextlib
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rocksdict import BlockBasedOptions, DBCompressionType, Options, Rdict, WriteBatch

from postdate.demo.process import free_ports, wait_until
from snapshot_storage.encoding.columns import DelayedIndexes
from snapshot_storage.encoding.snapshot import Snapshot, build_snapshot
from snapshot_storage.objects.format import checked_entries, decode_object_head, encode_object, object_extent
from snapshot_storage.rocksdb.snapshots import RocksDBBucketSnapshotStorage
from snapshot_storage.s3.config import S3Config
from snapshot_storage.s3.snapshots import S3BucketSnapshotStorage
from snapshot_storage.storage import BucketSnapshotStorage
from tests.helpers.storages.boto_edge import boto_client

NAMES = {"bucket_key": "#pulsar.internal.delayed.bucket_1_5", "topic_name": "persistent://a/b/c", "cursor_name": "d"}
NOW_MS = 1_800_000_000_000
HOUR_MS = 3_600_000

LAWS: dict[str, Callable[[np.random.Generator, int], NDArray[np.int64]]] = {
    "one instant": lambda _, count: np.full(count, NOW_MS + HOUR_MS),
    "fixed delay": lambda rng, count: NOW_MS + HOUR_MS + np.sort(rng.integers(0, 50_000, count)),
    "exponential 1 h": lambda rng, count: NOW_MS + rng.exponential(HOUR_MS, count).astype(np.int64),
    "uniform 7 days": lambda rng, count: NOW_MS + rng.integers(0, 7 * 24 * HOUR_MS, count),
}


def snapshot_of(law: str, row_count: int, *, seed: int, ledger_id: int = 100) -> Snapshot:
    """One bucket of two ledgers, as the tracker seals it with the default configuration."""
    rng = np.random.default_rng(seed)
    deliver_at_ms = LAWS[law](rng, row_count)
    ledger_ids = ledger_id + np.arange(row_count) * 2 // row_count
    entry_ids = np.arange(row_count) % (row_count // 2)
    order = np.lexsort((entry_ids, ledger_ids, deliver_at_ms))
    rows = DelayedIndexes(deliver_at_ms[order], ledger_ids[order], entry_ids[order])
    return build_snapshot(rows, step_ms=300_000, rows_max=5_000)


# ---- storages ----


class PlainFiles:
    """The least that keeps the promises: one file per snapshot."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir()
        self._next_id = 1

    def create(self, snapshot: Snapshot) -> int:
        """Write, sync, rename, sync the folder."""
        bucket_id, self._next_id = self._next_id, self._next_id + 1
        path = self._folder / str(bucket_id)
        with path.with_suffix(".new").open("wb") as file:
            file.write(encode_object(snapshot.metadata, snapshot.segments, **NAMES))
            file.flush()
            os.fsync(file.fileno())
        path.with_suffix(".new").rename(path)
        self._sync_folder()
        return bucket_id

    def read(self, bucket_id: int, entry: int) -> bytes:
        """Read and check one entry, and what says where it is."""
        with (self._folder / str(bucket_id)).open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            data = file.read(4_096)
            extent = object_extent(data, object_bytes=size)
            data += file.read(max(0, extent.head_end - len(data)))
            head = decode_object_head(data, object_bytes=size)
            start, end = head.starts()[entry : entry + 2].tolist()
            file.seek(start)
            return checked_entries(head, entry, file.read(end - start))[0]

    def delete(self, bucket_id: int) -> None:
        """Remove, sync the folder."""
        (self._folder / str(bucket_id)).unlink()
        self._sync_folder()

    def _sync_folder(self) -> None:
        descriptor = os.open(self._folder, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


class Contender(ABC):
    """One storage and the four things that are measured, each over many snapshots."""

    @abstractmethod
    async def create(self, snapshot: Snapshot) -> int:
        """Store one."""

    @abstractmethod
    async def read_segment(self, bucket_id: int) -> bytes:
        """Read one segment out of the middle."""

    @abstractmethod
    async def recover(self, bucket_id: int) -> bytes:
        """Read what recovery reads: metadata, in a storage that has just been opened."""

    @abstractmethod
    async def delete(self, bucket_id: int) -> None:
        """Delete one."""

    async def reopen(self) -> None:  # noqa: B027 - most have nothing to forget
        """Forget what is in memory."""

    def traffic(self) -> tuple[int, int]:
        """Calls and bytes so far, where they are counted."""
        return 0, 0


class StoredInFiles(Contender):
    """Plain files, on a thread as any blocking work would be."""

    def __init__(self, folder: Path, segment_count: int) -> None:
        self._files = PlainFiles(folder)
        self._entry = segment_count // 2 + 1

    async def create(self, snapshot: Snapshot) -> int:
        return await asyncio.to_thread(self._files.create, snapshot)

    async def read_segment(self, bucket_id: int) -> bytes:
        return await asyncio.to_thread(self._files.read, bucket_id, self._entry)

    async def recover(self, bucket_id: int) -> bytes:
        return await asyncio.to_thread(self._files.read, bucket_id, 0)

    async def delete(self, bucket_id: int) -> None:
        await asyncio.to_thread(self._files.delete, bucket_id)


class StoredOurs(Contender):
    """A storage of ours, through its interface."""

    def __init__(self, make: Callable[[], BucketSnapshotStorage], segment_count: int) -> None:
        self._make = make
        self.storage = make()
        self._entry = segment_count // 2 + 1

    async def create(self, snapshot: Snapshot) -> int:
        return await self.storage.create_bucket_snapshot(snapshot.metadata, snapshot.segments, **NAMES)

    async def read_segment(self, bucket_id: int) -> bytes:
        (segment,) = await self.storage.get_bucket_snapshot_segment(bucket_id, self._entry, self._entry)
        return segment

    async def recover(self, bucket_id: int) -> bytes:
        return (await self.storage.get_bucket_snapshot_head(bucket_id)).metadata

    async def delete(self, bucket_id: int) -> None:
        await self.storage.delete_bucket_snapshot(bucket_id)

    async def reopen(self) -> None:
        await self.storage.close()
        self.storage = self._make()
        await self.storage.start()


class StoredOnS3(StoredOurs):
    """S3 with a latency, and calls and bytes counted where boto3 sends and receives."""

    def __init__(self, config: S3Config, segment_count: int, latency_s: float) -> None:
        super().__init__(lambda: S3BucketSnapshotStorage(config), segment_count)
        self._latency_s = latency_s
        self._calls = self._bytes = 0

    async def reopen(self) -> None:
        await super().reopen()
        # The benchmark counts below the interface: nothing of it is part of what is measured.
        assert isinstance(self.storage, S3BucketSnapshotStorage)
        events = boto_client(self.storage).meta.events
        events.register("before-send.s3.*", self._before_send)
        events.register("after-call.s3.*", self._after_call)

    def _before_send(self, request: Any, **_: Any) -> None:
        self._calls += 1
        self._bytes += int(request.headers.get("Content-Length", 0))
        time.sleep(self._latency_s)

    def _after_call(self, http_response: Any, **_: Any) -> None:
        self._bytes += int(http_response.headers.get("content-length", 0))

    def traffic(self) -> tuple[int, int]:
        return self._calls, self._bytes


VERSITYGW = Path(__file__).parents[1] / "build" / "s3-servers" / "versitygw"


@contextlib.contextmanager
def s3_server(folder: Path, latency_ms: float, segment_count: int) -> Iterator[StoredOnS3]:
    """Run versitygw over a folder, with one bucket in it."""
    if not VERSITYGW.exists():
        sys.exit(f"{VERSITYGW} is missing: make s3-servers builds it")
    (folder / "s3" / "snapshots").mkdir(parents=True)
    (port,) = free_ports(1)
    config = S3Config(
        bucket="snapshots",
        endpoint=f"http://127.0.0.1:{port}",
        region="us-east-1",
        is_path_style=True,
        access_key_id="benchmark",
        secret_access_key="benchmark",
        # On a busy machine the server may be slow; what it would take is what is measured.
        read_timeout_ms=300_000,
    )
    process = subprocess.Popen(
        [VERSITYGW, "--port", f"127.0.0.1:{port}", "--quiet", "--keep-alive", "posix", folder / "s3"],
        env={"ROOT_ACCESS_KEY": "benchmark", "ROOT_SECRET_KEY": "benchmark"},
        stdout=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: _listens(port), timeout_s=60)
        yield StoredOnS3(config, segment_count, latency_ms / 1_000)
    finally:
        process.terminate()
        process.wait()


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


# ---- measuring ----

SAMPLE = 100
"""So many are created, read and deleted one after the other and timed; all are recovered."""

STEPS = ("create", "read segment", "recover all", "delete")


async def measure_round(contender: Contender, snapshots: list[Snapshot], parallel: int) -> dict[str, float]:
    """Milliseconds a snapshot for each step, one after the other; for recovery, milliseconds of all, in parallel."""
    spent: dict[str, float] = {}
    turn = asyncio.Semaphore(parallel)

    async def side_by_side(work: Callable[[Any], Awaitable[Any]], of: list[Any]) -> list[Any]:
        async def one(item: Any) -> Any:
            async with turn:
                return await work(item)

        return await asyncio.gather(*map(one, of))

    async def sampled(step: str, work: Callable[[Any], Awaitable[Any]], of: list[Any]) -> list[Any]:
        start = time.perf_counter()
        results = [await work(item) for item in of[:SAMPLE]]
        spent[step] = (time.perf_counter() - start) * 1_000 / len(results)
        return results

    await contender.reopen()
    ids = await sampled("create", contender.create, snapshots)
    ids += await side_by_side(contender.create, snapshots[SAMPLE:])
    await sampled("read segment", contender.read_segment, ids)

    await contender.reopen()
    calls, transferred = contender.traffic()
    start = time.perf_counter()
    found = await side_by_side(contender.recover, ids)
    spent["recover all"] = (time.perf_counter() - start) * 1_000
    assert found == [snapshot.metadata for snapshot in snapshots]
    calls_after, transferred_after = contender.traffic()
    spent["calls"], spent["bytes"] = calls_after - calls, transferred_after - transferred

    await sampled("delete", contender.delete, ids)
    await side_by_side(contender.delete, ids[SAMPLE:])
    return spent


async def compare(arguments: argparse.Namespace) -> None:
    """Run the rounds and print the table."""
    distinct = [snapshot_of("exponential 1 h", arguments.rows, seed=seed) for seed in range(8)]
    snapshots = [distinct[k % len(distinct)] for k in range(arguments.buckets)]
    size = sum(snapshot.length_bytes for snapshot in distinct) // len(distinct)
    print(f"{arguments.buckets} buckets of {arguments.rows} rows, {size:,} bytes each; {arguments.rounds} rounds")
    rounds: dict[str, list[dict[str, float]]] = {}
    # All distinct snapshots have about as many segments; the middle of the smallest is in all.
    segment_count = min(len(snapshot.segments) for snapshot in distinct)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        s3 = stack.enter_context(s3_server(folder, arguments.latency_ms, segment_count))
        for number in range(arguments.rounds):
            path = folder / str(number)
            path.mkdir()
            contenders: dict[str, Contender] = {
                "RocksDB": StoredOurs(partial(RocksDBBucketSnapshotStorage, path / "r"), segment_count),
                "plain files": StoredInFiles(path / "files", segment_count),
                f"S3 + {arguments.latency_ms:g} ms": s3,
            }
            # The second finds memory that the process has taken before: they take turns at that, too.
            for name, contender in reversed(contenders.items()) if number % 2 else contenders.items():
                rounds.setdefault(name, []).append(await measure_round(contender, snapshots, arguments.parallel))
                print(f"round {number + 1}: {name} done", file=sys.stderr)
                if isinstance(contender, StoredOurs):
                    await contender.storage.close()
            shutil.rmtree(path)
    print_comparison(rounds, arguments.buckets)


def print_comparison(rounds: dict[str, list[dict[str, float]]], bucket_count: int) -> None:
    """Print medians, and the ratio of RocksDB to plain files round by round."""
    print(f"\n{'ms (recover: of all)':<22}" + "".join(f"{step:>14}" for step in STEPS) + f"{'calls':>9}{'MB':>9}")
    for name, measured in rounds.items():
        medians = [statistics.median(one[step] for one in measured) for step in STEPS]
        calls, transferred = (statistics.median(one[what] for one in measured) for what in ("calls", "bytes"))
        traffic = f"{calls:>9.0f}{transferred / 1e6:>9.1f}" if calls else ""
        print(f"{name:<22}" + "".join(f"{median:>14.3f}" for median in medians) + traffic)
    ours, peer = rounds["RocksDB"], rounds["plain files"]
    ratios = [statistics.median(b[step] / a[step] for a, b in zip(ours, peer, strict=True)) for step in STEPS]
    print(f"{'files : RocksDB':<22}" + "".join(f"{ratio:>13.2f}x" for ratio in ratios))
    print(f"recovery is of {bucket_count} buckets; a ratio above 1 is in favour of RocksDB")


# ---- compression ----


def compressions() -> dict[str, Callable[[Options], None]]:
    """The ways to compress, each as what it sets."""

    def zstd(level: int, dictionary_bytes: int = 0) -> Callable[[Options], None]:
        def apply(options: Options) -> None:
            options.set_compression_type(DBCompressionType.zstd())
            options.set_compression_options(-14, level, 0, dictionary_bytes)
            options.set_zstd_max_train_bytes(100 * dictionary_bytes)

        return apply

    return {
        "none": lambda options: options.set_compression_type(DBCompressionType.none()),
        "lz4": lambda options: options.set_compression_type(DBCompressionType.lz4()),
        "zstd 1": zstd(1),
        "zstd 3": zstd(3),
        "zstd 9": zstd(9),
        "zstd 3, dictionary": zstd(3, 16 * 2**10),
    }


def measure_compression(
    folder: Path, apply: Callable[[Options], None], snapshots: list[Snapshot], row_count: int
) -> tuple[float, float, float]:
    """Bytes a row at rest, and milliseconds to write and to read a bucket."""
    options = Options(raw_mode=True)
    blocks = BlockBasedOptions()
    blocks.set_block_size(16 * 2**10)
    blocks.disable_cache()
    options.set_block_based_table_factory(blocks)
    apply(options)
    database = Rdict(str(folder), options)
    start = time.perf_counter()
    for number, snapshot in enumerate(snapshots):
        batch = WriteBatch(raw_mode=True)
        for entry, payload in enumerate((snapshot.metadata, *snapshot.segments)):
            batch.put(number.to_bytes(8) + entry.to_bytes(4), payload)
        database.write(batch)
    database.flush()
    database.compact_range(None, None)
    written_ms = (time.perf_counter() - start) * 1_000 / len(snapshots)
    size = sum(file.stat().st_size for file in folder.glob("*.sst"))
    start = time.perf_counter()
    read_bytes = sum(len(value) for value in database.values())
    read_ms = (time.perf_counter() - start) * 1_000 / len(snapshots)
    assert read_bytes == sum(snapshot.length_bytes for snapshot in snapshots)
    database.close()
    return size / (row_count * len(snapshots)), written_ms, read_ms


def compare_compressions(arguments: argparse.Namespace) -> None:
    """Print the table."""
    print(f"{'':<17}{'protobuf':>9}" + "".join(f"{name:>27}" for name in compressions()))
    print("bytes a row, then ms to write (with compaction) and to read a bucket of 50,000 rows")
    for law in LAWS:
        snapshots = [
            snapshot_of(law, arguments.rows, seed=seed, ledger_id=100 + 2 * seed) for seed in range(arguments.buckets)
        ]
        plain = sum(snapshot.length_bytes for snapshot in snapshots) / (arguments.rows * len(snapshots))
        cells = []
        for apply in compressions().values():
            with tempfile.TemporaryDirectory() as folder:
                size, written_ms, read_ms = measure_compression(Path(folder), apply, snapshots, arguments.rows)
                cells.append(f"{size:>11.2f}{written_ms:>8.1f}{read_ms:>8.2f}")
        print(f"{law:<17}{plain:>9.2f}" + "".join(cells))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=("storages", "compression"), default="storages")
    parser.add_argument("--buckets", type=int, help="default 1,000 for storages, 20 for compression")
    parser.add_argument("--rows", type=int, help="rows a bucket; default 5,000 for storages, 50,000 for compression")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--latency-ms", type=float, default=20.0, help="slept before each call of S3")
    parser.add_argument("--parallel", type=int, default=16, help="recoveries at a time, as the tracker has them")
    arguments = parser.parse_args()
    is_compression = arguments.what == "compression"
    arguments.buckets = arguments.buckets or (20 if is_compression else 1_000)
    arguments.rows = arguments.rows or (50_000 if is_compression else 5_000)
    if is_compression:
        compare_compressions(arguments)
    else:
        asyncio.run(compare(arguments))


if __name__ == "__main__":
    main()
