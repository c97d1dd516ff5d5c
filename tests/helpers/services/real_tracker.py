"""Drive Pulsar's own bucket tracker without a broker: the judge of our tracker's tests, the peer of its benchmark.

The Java programs are in `benchmarks/peer/`; Maven compiles them into `build/peer` at first use, and whenever they have
changed. Both sides read the same bytes, in a folder of `<bucket id>.snapshot` files and one `properties.json`, the
cursor's properties. Such a file holds the number of entries, the length of each, and then the entries one after the
other; numbers have four bytes, the most significant first.

Needs Java 17 or later and Maven. Left out on purpose: dispatchers, logs, acknowledgements (see `real_pulsar`).
"""

import hashlib
import json
import struct
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from snapshot_storage.memory import MemoryBucketSnapshotStorage
from snapshot_storage.storage import BucketSnapshotStorage
from tests.helpers.services.real_pulsar import OPENED_PACKAGES

_ROOT = Path(__file__).parents[3]
_SOURCES = _ROOT / "benchmarks" / "peer"
_BUILD = _ROOT / "build" / "peer"
_MAIN = "org.apache.pulsar.broker.delayed.bucket.PeerTracker"
_PROPERTIES = "properties.json"


def build() -> str:
    """Compile the Java programs unless it was done, and return their class path."""
    sources = sorted(path for path in _SOURCES.rglob("*") if path.is_file())
    state = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
    built = _BUILD / "built"
    if not built.exists() or built.read_text() != state:
        goals = ["compiler:compile", "dependency:build-classpath"]
        pom = str(_SOURCES / "pom.xml")
        subprocess.run(["mvn", "-q", "-B", "-Dstyle.color=never", "-f", pom, *goals], check=True)
        built.write_text(state)
    # Log4j and Mockito find their settings among the resources.
    return f"{_SOURCES / 'src/main/resources'}:{_BUILD / 'classes'}:{(_BUILD / 'classpath').read_text().strip()}"


class RealTracker:
    """A Java process that drives Pulsar's tracker as it is asked to."""

    def __init__(self, *, heap: str = "1g") -> None:
        opens = [word for package in OPENED_PACKAGES for word in ("--add-opens", f"{package}=ALL-UNNAMED")]
        command = ["java", f"-Xmx{heap}", *opens, "-cp", build(), _MAIN]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def ask(self, command: str, **arguments: str | int | list[int]) -> dict[str, Any]:
        """Send a request and wait for the answer; see `PeerTracker.java` for what there is.

        Raises:
            RuntimeError: The request failed there; the trace is on its standard error.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"command": command} | arguments) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"error": "the process ended"}
        if "error" in answer:
            raise RuntimeError(f"{command}: {answer['error']}")
        return answer

    def close(self) -> None:
        """End the process."""
        self._process.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


async def store_folder(storage: BucketSnapshotStorage, properties: Mapping[str, str], folder: Path) -> None:
    """Write a storage's snapshots and a cursor's properties to a folder that is there."""
    for info in await storage.list_bucket_snapshots():
        entries = [await storage.get_bucket_snapshot_metadata(info.bucket_id)]
        entries += await storage.get_bucket_snapshot_segment(info.bucket_id, 1, max(1, info.segment_count))
        head = struct.pack(f">{1 + len(entries)}I", len(entries), *map(len, entries))
        (folder / f"{info.bucket_id}.snapshot").write_bytes(head + b"".join(entries))
    (folder / _PROPERTIES).write_text(json.dumps(dict(properties)))


async def load_folder(folder: Path) -> tuple[MemoryBucketSnapshotStorage, dict[str, str]]:
    """Return a storage with a folder's snapshots, and the cursor's properties, which name them."""
    storage = MemoryBucketSnapshotStorage()
    await storage.start()
    stored: dict[str, str] = json.loads((folder / _PROPERTIES).read_text())
    properties: dict[str, str] = {}
    for key, bucket_id in stored.items():
        metadata, *segments = read_entries(folder / f"{bucket_id}.snapshot")
        own_id = await storage.create_bucket_snapshot(
            metadata, segments, bucket_key=key, topic_name="peer", cursor_name="sub"
        )
        properties[key] = str(own_id)
    return storage, properties


def read_entries(path: Path) -> list[bytes]:
    """Return the entries of one snapshot file."""
    data = path.read_bytes()
    (count,) = struct.unpack_from(">I", data)
    lengths = struct.unpack_from(f">{count}I", data, 4)
    start = 4 * (1 + count)
    entries: list[bytes] = []
    for length in lengths:
        entries.append(data[start : start + length])
        start += length
    assert start == len(data)
    return entries
