"""A damaged log as clients see it: the service does not start, and after a repair all whole entries arrive."""

import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pulsar
import pytest
from pulsar import ConsumerType

from postdate.demo.process import PostdateProcess, ProcessStartError
from tests.helpers.damaged_logs import flip, flip_type
from tests.helpers.services.programs.clients import Clients, subscribe

pytestmark = pytest.mark.exhaustive

MESSAGES = 600
PAYLOAD_BYTES = 500
MESSAGES_OF_A_BLOCK = 2**15 // PAYLOAD_BYTES + 2
"""RocksDB skips a block of a write-ahead log for one wrong byte, and the two commits that reach into it and beyond it.
Each message that is awaited has a commit of its own, which is larger than its payload."""


@pytest.fixture
def own_service(tmp_path: Path) -> Iterator[PostdateProcess]:
    """A service of this test's own, started by the test."""
    running = PostdateProcess(tmp_path, {"managedLedgerMaxEntriesPerLedger": "100"})
    yield running
    running.stop()


def _postdate(*words: str) -> tuple[int, dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "postdate", *words, "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in done.stderr
    return done.returncode, json.loads(done.stdout) if done.stdout else {}


def _take_all(consumer: pulsar.Consumer) -> list[int]:
    """Receive and acknowledge until nothing comes any more."""
    taken = []
    while True:
        try:
            message = consumer.receive(5_000)
        except pulsar.Timeout:
            return taken
        taken.append(int(message.data()[:8]))
        consumer.acknowledge(message)


def test_after_a_repair_all_subscriptions_get_what_is_whole(own_service: PostdateProcess) -> None:
    """Also one that begins anew, in key order, with a third delayed; the backlog ends at nothing."""
    own_service.start()
    clients = Clients(own_service.url)
    client = clients.new()
    consumer = subscribe(client, "orders", ConsumerType.KeyShared)
    producer = client.create_producer("orders", batching_enabled=False)
    source = random.Random(3)
    for number in range(MESSAGES):
        options = {"deliver_after": timedelta(seconds=1)} if number % 3 == 0 else {}
        payload = b"%08d" % number + source.randbytes(PAYLOAD_BYTES)
        producer.send_async(payload, lambda *_: None, partition_key=str(number % 5), **options)
    producer.flush()
    consumer.close()
    clients.close()
    own_service.stop()
    data = own_service.folder / "data"
    # A close has left all entries in the write-ahead log; a start makes tables of it.
    own_service.start()
    own_service.stop()
    tables = sorted((data / "ledgers").glob("*.sst"), key=lambda table: table.stat().st_size)
    flip(tables[-1], random.Random(5))

    code, verdict = _postdate("check", "--data", str(data))
    assert code == 1
    assert [one["topic"] for one in verdict["log"]["lost"]] == ["persistent://public/default/orders"]
    lost = sum(one["count"] for one in verdict["log"]["lost"])
    assert 0 < lost < 50
    code, done = _postdate("ledger", "repair", str(data), "--yes")
    assert (code, done["lost_entries"]) == (0, lost)
    assert Path(done["kept_folder"]).is_dir()

    own_service.start()
    clients = Clients(own_service.url)
    for subscription in ("sub", "new"):
        consumer = subscribe(clients.new(), "orders", ConsumerType.KeyShared, subscription=subscription)
        taken = _take_all(consumer)
        assert len(taken) == len(set(taken)) == MESSAGES - lost
        stats = json.loads(own_service.read("/admin/v2/persistent/public/default/orders/stats"))
        assert stats["subscriptions"][subscription]["msgBacklog"] == 0
    clients.new().create_producer("orders").send(b"%08d" % MESSAGES)
    assert _take_all(consumer) == [MESSAGES]
    clients.close()


def _flip_the_middle(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0xFF
    file.write_bytes(content)


@pytest.mark.parametrize("harm", [_flip_the_middle, flip_type])
def test_a_flipped_byte_in_the_write_ahead_log_costs_the_commits_around_it(
    own_service: PostdateProcess, harm: Callable[[Path], None]
) -> None:
    """The service refuses to start; a repair keeps all others."""
    own_service.start()
    clients = Clients(own_service.url)
    producer = clients.new().create_producer("orders")
    subscribe(clients.new(), "orders")
    for number in range(200):
        producer.send(b"%08d" % number + bytes(PAYLOAD_BYTES))
    clients.close()
    own_service.kill()
    data = own_service.folder / "data"
    (log,) = (data / "ledgers").glob("*.log")
    harm(log)

    with pytest.raises(ProcessStartError, match="is damaged"):
        own_service.start()
    assert _postdate("check", "--data", str(data))[0] == 1
    code, done = _postdate("ledger", "repair", str(data), "--yes")
    assert code == 0

    own_service.start()
    clients = Clients(own_service.url)
    taken = _take_all(subscribe(clients.new(), "orders"))
    assert taken == sorted(set(taken))
    # Of the last record nothing is left that names what was in it.
    assert 200 - MESSAGES_OF_A_BLOCK <= len(taken) <= 200 - done["lost_entries"]
    assert set(taken) <= set(range(200))
    clients.close()
