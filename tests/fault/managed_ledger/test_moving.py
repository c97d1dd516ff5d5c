"""A log that moves between a data folder and a prefix: all of it or nothing, gone on with, and beside its service."""

import asyncio
import shutil
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from managed_ledger.bundle_settings import (
    BUNDLES,
    LEDGERS,
    RESTORING,
    SETTINGS,
    decode_settings,
    encode_settings,
    ranges_in,
)
from managed_ledger.bundles import WHOLE, BundleRange, even_ranges
from managed_ledger.dividing import OLD, divide
from managed_ledger.errors import BackupError, BackupTakenError, StoreLockedError, StoreUnavailableError
from managed_ledger.ledger_store import LedgerStore
from managed_ledger.objects import moving
from managed_ledger.objects.log_object import LOGS
from managed_ledger.objects.manifest import MANIFEST, Manifest
from managed_ledger.objects.moving import bundle_objects, cluster_in, move_in, move_out
from managed_ledger.objects.place_checkpoints import checkpoints_of, fetch_bundles, store_bundles
from managed_ledger.objects.shared_records import (
    SHARED_RECORDS,
    decode_records,
    encode_records,
    put_shared,
    shared_in_log,
)
from managed_ledger.objects.shipped_database import open_shipped
from postdate.broker.service.record_homes import home_of_record
from tests.helpers.divided_logs import CONFIG, SHARED, contents, fill_data
from tests.helpers.fakes.managed_ledger_fakes import LedgerClock
from tests.helpers.fakes.memory_objects import MemoryObjects

TWO: Final = even_ranges(2)
EAST: Final = "east"


def ignored(_done: int, _of_all: int) -> None:
    pass


def moved_in(objects: MemoryObjects, data: Path) -> int:
    return sum(one.new_tables for one in move_in(objects, data, EAST, made_at_ms=1_000, on_bytes=ignored))


def moved_out(objects: MemoryObjects, data: Path) -> Path:
    move_out(objects, data, on_bytes=ignored)
    return data


@pytest.fixture(scope="module")
def undivided(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = tmp_path_factory.mktemp("undivided") / "data"
    fill_data(data, range(6))
    return data


@pytest.fixture(scope="module")
def divided(undivided: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = tmp_path_factory.mktemp("divided") / "data"
    shutil.copytree(undivided, data)
    divide(data, 2, home_of=home_of_record)
    shutil.rmtree(data / OLD)
    return data


@pytest.fixture(params=["undivided", "divided"])
def data(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    shutil.copytree(request.getfixturevalue(request.param), tmp_path / "data")
    return tmp_path / "data"


def serve(objects: MemoryObjects, bundle: BundleRange, cache: Path, topic: str | None = None) -> None:
    """Open a bundle as a service does, add a topic with a message if it is its own, and let go of it."""

    async def run() -> None:
        open_database = partial(
            open_shipped, objects=bundle_objects(objects, bundle), now_ms=LedgerClock(), on_lost=lambda: None
        )
        store = await LedgerStore.open(cache / str(bundle), CONFIG, now_ms=LedgerClock(), open_database=open_database)
        if topic is not None:
            ledger = await store.open_managed_ledger(topic)
            await ledger.append(b"new", publish_time_ms=2_000)
            await store.put_record(f"topicEpoch {topic}", b"7")
        await store.close()

    asyncio.run(run())


def topic_of(bundle: BundleRange) -> str:
    return next(name for at in range(100) if bundle.has(name := f"persistent://a/b/{at}"))


def manifest_in(objects: MemoryObjects, bundle: BundleRange) -> Manifest:
    return Manifest.decode(objects.objects[f"bundle/{bundle}/{MANIFEST}"], "here")


def test_a_log_that_moved_in_is_served_and_moves_out_with_what_came_meanwhile(data: Path, tmp_path: Path) -> None:
    before, objects = contents(data), MemoryObjects()
    ranges = ranges_in(data)

    moved_in(objects, data)

    assert contents(data) == before
    assert decode_settings(objects.objects[SETTINGS], "here") == (ranges, EAST)
    assert decode_records(objects.objects[SHARED_RECORDS], "here") == SHARED
    assert cluster_in(objects) == EAST
    for number, bundle in enumerate(ranges):
        serve(objects, bundle, tmp_path / f"cache-{number}", topic_of(bundle) if number == 0 else None)
    # Grants that were changed meanwhile.
    objects.objects[SHARED_RECORDS] = objects.objects[SHARED_RECORDS].replace(b"permissions", b"delayedDelivery x")
    changed = decode_records(objects.objects[SHARED_RECORDS], "here")
    out = moved_out(objects, tmp_path / "out")

    after = contents(out)
    new = {name for name in after if name not in before}
    assert len([name for name in new if name.startswith("persistent://a/b/")]) == 1
    if ranges == (WHOLE,):
        assert shared_in_log(out / LEDGERS) == changed
        assert new >= changed.keys() - SHARED.keys()
        before = {name: value for name, value in before.items() if name not in SHARED}
    else:
        assert decode_records((out / SHARED_RECORDS).read_bytes(), "here") == changed
    assert {name: after[name] for name in before} == before
    with pytest.raises(BackupError, match="is not empty"):
        moved_out(objects, out)


def test_the_id_of_the_log_is_its_own_and_stays_while_it_is_served(data: Path, tmp_path: Path) -> None:
    objects, bundle = MemoryObjects(), ranges_in(data)[0]
    moved_in(objects, data)
    own = manifest_in(objects, bundle).log
    with checkpoints_of(data) as folders:
        assert own != (folders[bundle] / "IDENTITY").read_text().strip()
    for number in range(3):
        serve(objects, bundle, tmp_path / f"cache-{number}", topic_of(bundle))
        assert manifest_in(objects, bundle).log == own


def test_a_prefix_with_something_else_is_left_alone(data: Path) -> None:
    objects = MemoryObjects()
    moved_in(objects, data)
    found = dict(objects.objects)
    with pytest.raises(BackupError, match="has the log of the cluster east: name another prefix"):
        moved_in(objects, data)
    assert objects.objects == found
    # Its list was deleted by hand.
    objects.objects.pop(SETTINGS)
    bundle = bundle_objects(objects, ranges_in(data)[0])
    bundle.create(f"{LOGS}{1:016}", b"x")
    with pytest.raises(BackupError, match=r"has other objects, such as bundle/.*/log/0+1: name a prefix that is empty"):
        moved_in(objects, data)
    with pytest.raises(BackupError, match=r"has other objects, such as cat\.jpg"):
        moved_in(_with(MemoryObjects(), "cat.jpg"), data)


def _with(objects: MemoryObjects, name: str) -> MemoryObjects:
    objects.objects[name] = b"other"
    return objects


def test_a_folder_that_is_in_use_does_not_move(data: Path) -> None:
    objects = MemoryObjects()
    with checkpoints_of(data), pytest.raises(StoreLockedError):
        moved_in(objects, data)
    assert objects.objects == {}


class Cut(MemoryObjects):
    """Objects of which a number of calls that change something succeed."""

    def __init__(self) -> None:
        super().__init__()
        self.left = 1_000_000

    def _count(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise OSError("the network is gone")

    def put_file(self, name: str, path: Path) -> None:
        self._count()
        super().put_file(name, path)

    def replace(self, name: str, data: bytes, tag: str | None) -> str | None:
        self._count()
        return super().replace(name, data, tag)

    def create(self, name: str, data: bytes) -> bool:
        self._count()
        return super().create(name, data)

    def delete_all(self, names: Any) -> None:
        self._count()
        super().delete_all(names)


def test_a_move_that_is_cut_off_anywhere_is_gone_on_with(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moving, "NOTED_BYTES", 1)
    before, ranges = contents(data), ranges_in(data)
    again, tables, noted = 0, 0, 0
    stride = 1 if ranges == (WHOLE,) else 7
    for steps in range(0, 1_000, stride):
        objects = Cut()
        objects.left = steps
        try:
            moved_in(objects, data)
            break
        except OSError:
            assert SETTINGS not in objects.objects, "no service starts on it"
        objects.left = 1_000_000
        again = moved_in(objects, data)
        tables = sum(len(manifest_in(objects, one).tables) for one in ranges)
        noted += 0 < again < tables
        assert sum("/table/" in name for name in objects.objects) == tables
    assert noted > 2, "what a manifest names is not stored again"
    assert again == 0 or stride > 1, "all was there but the list of bundles"
    assert steps > 10
    assert contents(moved_out(objects, tmp_path / "out")) == before


def test_bytes_that_come_back_otherwise_are_told(data: Path) -> None:
    class Rotten(MemoryObjects):
        def fetch_file(self, name: str, path: Path) -> bool:
            found = super().fetch_file(name, path)
            path.write_bytes(b"x" + path.read_bytes()[1:])
            return found

    objects = Rotten()
    with pytest.raises(BackupError, match="does not give back what was stored as table/"):
        moved_in(objects, data)
    assert SETTINGS not in objects.objects


def test_a_service_that_begins_at_the_same_time_keeps_the_prefix(data: Path, tmp_path: Path) -> None:
    ranges = ranges_in(data)

    class Taken(MemoryObjects):
        when = ""
        is_done = False

        def names(self, prefix: str) -> Any:
            found = list(super().names(prefix))
            self._take("looked")
            return iter(found)

        def put_file(self, name: str, path: Path) -> None:
            super().put_file(name, path)
            self._take("stored")

        def _take(self, when: str) -> None:
            if when != self.when or self.is_done:
                return
            self.is_done = True
            self.objects[SETTINGS] = encode_settings(ranges, "west")
            for one in ranges:
                serve(self, one, tmp_path / when, topic_of(one))

    for when, error in (("looked", BackupError), ("stored", BackupTakenError)):
        objects = Taken()
        objects.when = when
        with pytest.raises(error):
            moved_in(objects, data)
        assert cluster_in(objects) == "west"
        out = contents(moved_out(objects, tmp_path / f"out-{when}"))
        assert len([name for name in out if name.startswith("persistent://a/b/")]) == len(ranges)
        assert not any(name.startswith("persistent://public/") for name in out)


def test_moving_out_is_gone_on_with_and_notices_what_changed(divided: Path, tmp_path: Path) -> None:
    shutil.copytree(divided, tmp_path / "data")
    fetched: list[str] = []
    left = 1_000

    class Fetched(MemoryObjects):
        def fetch_file(self, name: str, path: Path) -> bool:
            nonlocal left
            left -= 1
            if left < 0:
                raise OSError("the network is gone")
            fetched.append(name)
            return super().fetch_file(name, path)

    objects, target = Fetched(), tmp_path / "out"
    moved_in(objects, tmp_path / "data")
    first = len(manifest_in(objects, TWO[0]).tables)
    left = first + 1
    fetched.clear()
    with pytest.raises(OSError, match="the network is gone"):
        moved_out(objects, target)
    with pytest.raises(StoreUnavailableError, match="cut off"):
        ranges_in(target)
    assert (target / RESTORING / str(TWO[0]) / LEDGERS).is_dir()
    with pytest.raises(OSError, match="the network is gone"):
        moved_out(objects, target)
    assert len(set(fetched)) == first + 1, "the first bundle was there"
    left = 1_000
    serve(objects, TWO[0], tmp_path / "cache", topic_of(TWO[0]))
    moved_out(objects, target)
    assert not (target / RESTORING).exists()
    assert any(name.startswith("persistent://a/b/") for name in contents(target))
    assert sorted(one.name for one in (target / BUNDLES).rglob("*") if one.name == MANIFEST) == []


def test_a_backup_of_a_prefix_with_one_bundle_brings_back_what_is_of_no_single_topic(
    undivided: Path, tmp_path: Path
) -> None:
    shutil.copytree(undivided, tmp_path / "data")
    put_shared(tmp_path / "data" / LEDGERS, {"permissions public/old": b"{}"})
    assert shared_in_log(tmp_path / "data" / LEDGERS) == {"permissions public/old": b"{}"}
    objects = MemoryObjects()
    store_bundles(objects, tmp_path / "data", made_at_ms=1_000, on_bytes=ignored)
    # As a service on a prefix adds it.
    objects.objects[SHARED_RECORDS] = encode_records(SHARED)
    fetch_bundles(objects, tmp_path / "restored", on_bytes=ignored)
    assert shared_in_log(tmp_path / "restored" / LEDGERS) == SHARED
    # A folder's own backup in the same place has them in the log again.
    store_bundles(objects, tmp_path / "data", made_at_ms=1_000, on_bytes=ignored)
    assert SHARED_RECORDS not in objects.objects
