"""A service whose folder of snapshots is damaged: it starts, delivers all in order, and says where the folder is now.

The folder is as a kill leaves it: a table from the start before, and the rest in the write-ahead log. Messages are due
in the reverse of the order in which they were published, so the order of the log is never the right one.

In a second folder a bucket has many segments in several blocks. There one block is damaged, with entry 0 or with
segments alone, and all else is whole: that bucket alone is given up. Each bucket reaches over the whole time there, so
rows that are read again belong between the rows of the others.
"""

import os
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from pulsar import ConsumerType

from postdate.demo.process import PostdateProcess, wait_until
from tests.helpers.damaged_logs import flip_type
from tests.helpers.services.programs.clients import Clients, receive, subscribe, texts
from tests.helpers.services.services import POSTDATE, make_service
from tests.helpers.services.snapshot_figures import counted, named_snapshots

TIMEOUT_S = 40
KEYS = 7
DELAYED = 201
"""Messages: four ledgers that are full, and so four snapshots, and one that is not."""
DUE_AFTER_MS = 12_000
SETTINGS = {
    "managedLedgerMaxEntriesPerLedger": "50",
    "delayedDeliveryMinIndexCountPerBucket": "50",
    "delayedDeliveryRetryBackoffMaxMillis": "1000",
}


BLOCKS_PER_LEDGER = 2_500
BLOCKS_DELAYED = 3 * BLOCKS_PER_LEDGER + 1
"""Messages of the second folder: three buckets of 50 segments, and a message that none has."""
BLOCKS_DUE_AFTER_MS = 20_000
SETTINGS_OF_BLOCKS = {
    "managedLedgerMaxEntriesPerLedger": str(BLOCKS_PER_LEDGER),
    "delayedDeliveryMinIndexCountPerBucket": str(BLOCKS_PER_LEDGER),
    "delayedDeliveryMaxIndexesPerBucketSnapshotSegment": "50",
    "delayedDeliveryRetryBackoffMaxMillis": "1000",
}


def new_service(folder: Path, settings: Mapping[str, str] = SETTINGS) -> PostdateProcess:
    service = make_service(POSTDATE, folder, settings)
    assert isinstance(service, PostdateProcess)
    return service


def publish(service: PostdateProcess, first: int, end: int, *, deliver_at_ms: int, snapshots: int) -> None:
    """Publish numbers, each due 10 ms before the one before it."""
    clients = Clients(service.url)
    try:
        client = clients.new()
        subscribe(client, "orders", ConsumerType.KeyShared).close()
        producer = client.create_producer("orders", batching_enabled=False)
        for number in range(first, end):
            producer.send(
                str(number).encode(),
                partition_key=str(number % KEYS),
                deliver_at=deliver_at_ms - 10 * number,
            )
        wait_until(lambda: named_snapshots(service) == snapshots, timeout_s=TIMEOUT_S)
    finally:
        clients.close()


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data folder of a service that was killed."""
    return _killed(tmp_path_factory.mktemp("killed"), DUE_AFTER_MS)


@pytest.fixture(scope="module")
def killed_early(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, of messages that are due long after the test."""
    return _killed(tmp_path_factory.mktemp("killed-early"), 3_600_000)


def _killed(folder: Path, due_after_ms: int) -> Path:
    service = new_service(folder)
    service.start()
    deliver_at_ms = time.time_ns() // 1_000_000 + due_after_ms
    publish(service, 0, 100, deliver_at_ms=deliver_at_ms, snapshots=1)
    service.stop()
    service.start()
    publish(service, 100, DELAYED, deliver_at_ms=deliver_at_ms, snapshots=4)
    service.kill()
    return service.folder / "data"


def flip(file: Path, place: float = 0.5) -> None:
    data = bytearray(file.read_bytes())
    if data:
        data[int(len(data) * place)] ^= 0x10
    file.write_bytes(data)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def make_pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


@pytest.mark.parametrize(
    ("pattern", "harm", "is_put_aside"),
    [("*.sst", cut, True), ("*.log", flip_type, True), ("*.log", Path.unlink, False), ("CURRENT", make_pipe, True)],
)
def test_all_is_delivered_in_order_whichever_file_is_damaged(
    killed: Path, tmp_path: Path, pattern: str, harm: Callable[[Path], None], is_put_aside: bool
) -> None:
    """Fresh messages at once, delayed ones by time; rows that no snapshot has any more are read from the log again."""
    service = new_service(tmp_path / "service")
    shutil.copytree(killed, service.folder / "data")
    snapshots = service.folder / "data" / "snapshots"
    harm(max(snapshots.glob(pattern), key=lambda file: file.stat().st_size))
    service.start()
    clients = Clients(service.url)
    try:
        client = clients.new()
        consumer = subscribe(client, "orders", ConsumerType.KeyShared)
        producer = client.create_producer("orders", batching_enabled=False)
        producer.send(b"1000", partition_key="fresh")
        received = receive(consumer, DELAYED + 1, timeout_ms=TIMEOUT_S * 1_000)
        for message in received:
            consumer.acknowledge(message)
        numbers = list(map(int, texts(received)))
        assert sorted(numbers) == [*range(DELAYED), 1000]
        for key in range(KEYS):
            of_key = [number for number in numbers if number < DELAYED and number % KEYS == key]
            assert of_key == sorted(of_key, reverse=True)
        # No property names what is gone, once things are at rest.
        wait_until(lambda: named_snapshots(service) == 0, timeout_s=TIMEOUT_S)

        aside = list(snapshots.parent.glob("snapshots-put-aside-*"))
        lines = [line for line in service.log_path.read_text().splitlines() if " ERROR " in line]
        assert len(aside) == len(lines) == is_put_aside
        if is_put_aside:
            assert f"the folder was put aside as {aside[0]}" in lines[0]
    finally:
        clients.close()
        assert service.stop() == 0


def lose_the_log(snapshots: Path) -> None:
    max(snapshots.glob("*.log")).unlink()


@pytest.mark.parametrize(("harm", "lost"), [(lose_the_log, 3), (shutil.rmtree, 4)])
def test_snapshots_that_are_gone_are_told_and_counted_when_their_topic_is_opened(
    killed_early: Path, tmp_path: Path, harm: Callable[[Path], None], lost: int
) -> None:
    """RocksDB opens the folder without a word, and no consumer is back whose tracker would look for them."""
    service = new_service(tmp_path / "service")
    shutil.copytree(killed_early, service.folder / "data")
    harm(service.folder / "data" / "snapshots")
    service.start()
    clients = Clients(service.url)
    try:
        clients.new().create_producer("orders")
        wait_until(lambda: counted(service, "postdate_delayed_buckets_lost_total") > 0, timeout_s=TIMEOUT_S)
        assert counted(service, "postdate_delayed_buckets_lost_total") == lost
        assert named_snapshots(service) == 4 - lost
    finally:
        clients.close()
        assert service.stop() == 0
    (line,) = [line for line in service.log_path.read_text().splitlines() if " WARNING " in line]
    assert f"{lost} snapshots of persistent://public/default/orders / sub are missing: " in line


def test_a_folder_that_is_removed_under_the_service_is_named_and_made_again(tmp_path: Path) -> None:
    """At the next write, with one error: all is delivered in order, and later snapshots are found by the next start."""
    service = new_service(tmp_path)
    service.start()
    snapshots = service.folder / "data" / "snapshots"
    deliver_at_ms = time.time_ns() // 1_000_000 + DUE_AFTER_MS
    publish(service, 0, 100, deliver_at_ms=deliver_at_ms, snapshots=1)
    shutil.rmtree(snapshots)
    publish(service, 100, DELAYED, deliver_at_ms=deliver_at_ms, snapshots=4)
    clients = Clients(service.url)
    try:
        received = receive(subscribe(clients.new(), "orders", ConsumerType.KeyShared), DELAYED, timeout_ms=40_000)
    finally:
        clients.close()
        assert service.stop() == 0

    numbers = list(map(int, texts(received)))
    assert sorted(numbers) == list(range(DELAYED))
    for key in range(KEYS):
        of_key = [number for number in numbers if number % KEYS == key]
        assert of_key == sorted(of_key, reverse=True)
    (line,) = [line for line in service.log_path.read_text().splitlines() if " ERROR " in line]
    assert f"the snapshots in {snapshots} were removed or replaced while they were in use" in line
    assert (snapshots / "CURRENT").is_file()


def test_a_pipe_in_the_place_of_a_file_of_the_log_ends_the_start(killed: Path, tmp_path: Path) -> None:
    """The log is not derived: the service refuses, and says which file it is and what to do."""
    service = new_service(tmp_path)
    shutil.copytree(killed, service.folder / "data")
    make_pipe(service.folder / "data" / "ledgers" / "CURRENT")

    service.start(wait=False)
    wait_until(lambda: not service.is_running, timeout_s=TIMEOUT_S)

    assert service.process is not None
    assert service.process.returncode == 2
    assert "CURRENT is no file" in service.log_tail()
    assert "postdate ledger repair" in service.log_tail()


def due_before_ms(number: int) -> int:
    """Return how long before the last one a message of the second folder is due: each ledger goes over 7.5 s."""
    return number * 1_009 % BLOCKS_DELAYED


@pytest.fixture(scope="module")
def blocks(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """The second folder, all buckets of which are in one table, and when the last message is due."""
    service = new_service(tmp_path_factory.mktemp("blocks"), SETTINGS_OF_BLOCKS)
    service.start()
    deliver_at_ms = time.time_ns() // 1_000_000 + BLOCKS_DUE_AFTER_MS
    clients = Clients(service.url)
    try:
        client = clients.new()
        subscribe(client, "orders", ConsumerType.KeyShared).close()
        producer = client.create_producer(
            "orders", batching_enabled=False, max_pending_messages=BLOCKS_DELAYED, block_if_queue_full=True
        )
        for number in range(BLOCKS_DELAYED):
            producer.send_async(
                str(number).encode(),
                lambda *_: None,
                partition_key=str(number % KEYS),
                deliver_at=deliver_at_ms - due_before_ms(number),
            )
        producer.flush()
        wait_until(lambda: named_snapshots(service) == 3, timeout_s=TIMEOUT_S)
    finally:
        clients.close()
    service.stop()
    # Entries in the write-ahead log go to a table at the next start.
    service.start()
    service.kill()
    return service.folder / "data", deliver_at_ms


@pytest.mark.parametrize("is_due", [False, True], ids=["due later", "due at the start"])
@pytest.mark.parametrize(("place", "is_entry_0"), [(0.02, True), (0.24, False)])
def test_a_bucket_that_is_given_up_keeps_its_place_in_the_order_of_time(
    blocks: tuple[Path, int], tmp_path: Path, place: float, is_entry_0: bool, is_due: bool
) -> None:
    """One flipped bit in a block: its messages come between those of the other buckets, each once."""
    folder, last_ms = blocks
    service = new_service(tmp_path / "service", SETTINGS_OF_BLOCKS)
    shutil.copytree(folder, service.folder / "data")
    flip(max((service.folder / "data" / "snapshots").glob("*.sst"), key=lambda file: file.stat().st_size), place)
    if is_due:
        wait_until(lambda: time.time_ns() // 1_000_000 > last_ms, timeout_s=TIMEOUT_S)
    service.start()
    clients = Clients(service.url)
    try:
        consumer = subscribe(clients.new(), "orders", ConsumerType.KeyShared)
        received = receive(consumer, BLOCKS_DELAYED, timeout_ms=TIMEOUT_S * 1_000)
        numbers = list(map(int, texts(received)))
    finally:
        clients.close()
        assert service.stop() == 0
    assert sorted(numbers) == list(range(BLOCKS_DELAYED))
    for key in range(KEYS):
        of_key = [number for number in numbers if number % KEYS == key]
        assert of_key == sorted(of_key, key=due_before_ms, reverse=True)
    lost = [line for line in service.log_path.read_text().splitlines() if "gave up the bucket" in line]
    assert len(lost) == 1
    assert ("entry 0 of" in lost[0]) == is_entry_0
