"""`postdate` is all that an embedding program imports: complete, light, and clear about what is not installed."""

import ast
import asyncio
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import postdate
from postdate import testing
from postdate.broker.configuration.config import BrokerConfig
from postdate.command_line.extras import MODULES_OF_EXTRAS, install
from postdate.testing import FakeClock, run_inline, run_virtually, virtual_now_ms
from tracker.config import FACTORY_CLASS_NAMES

ROOT = Path(__file__).parents[3]


def run_without(modules: list[str], program: str) -> subprocess.CompletedProcess[str]:
    blocked = f"import sys; sys.modules.update(dict.fromkeys({modules!r}))\n"
    command = [sys.executable, "-W", "error", "-c", blocked + program]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


def test_every_name_is_there_and_explained() -> None:
    for name in postdate.__all__:
        found = getattr(postdate, name)
        assert isinstance(found, str) or found.__doc__, name
    assert dir(postdate) == postdate.__all__


def test_checkers_and_programs_find_the_same_names_in_the_same_modules() -> None:
    """Checkers read imports, programs a table."""
    tree = ast.parse((ROOT / "postdate/__init__.py").read_text())
    (for_checkers,) = (node for node in tree.body if isinstance(node, ast.If))
    table = next(node.value for node in tree.body if isinstance(node, ast.AnnAssign) and node.value is not None)

    imports = [node for node in for_checkers.body if isinstance(node, ast.ImportFrom)]

    assert {node.module: tuple(one.asname for one in node.names) for node in imports} == ast.literal_eval(table)


def test_the_documentation_names_every_name() -> None:
    text = "".join((ROOT / "docs" / page).read_text() for page in ("embedding.md", "scheduling.md"))

    assert [name for name in postdate.__all__ if f"`{name}`" not in text] == []


@pytest.mark.slow
def test_the_program_of_the_documentation_for_tests_runs_through_an_hour_with_faults() -> None:
    """In a process without what extras bring; each name of `postdate.testing` is documented."""
    section = (ROOT / "docs/embedding.md").read_text().split("## Tests of a program")[1]
    found = re.search(r"```python\n(.*?)```", section, re.DOTALL)
    assert found is not None

    result = run_without(sorted({name for names in MODULES_OF_EXTRAS.values() for name in names}), found[1])

    said = re.fullmatch(r"(\d+) of 100 after an hour, with (\d+) faults of the storage\n", result.stdout)
    assert said is not None, result.stderr
    assert int(said[1]) == 100
    assert int(said[2]) > 0
    assert [name for name in testing.__all__ if f"`{name}`" not in section] == []


def test_a_folder_may_be_named_by_a_text(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with postdate.RocksDBBucketSnapshotStorage(str(tmp_path / "snapshots")) as storage:
            bucket_id = await storage.create_bucket_snapshot(
                b"m", [b"s"], bucket_key="k", topic_name="t", cursor_name="c"
            )
            await storage.checkpoint(str(tmp_path / "backup"))
        async with postdate.RocksDBBucketSnapshotStorage(str(tmp_path / "backup")) as backup:
            assert [info.bucket_id for info in await backup.list_bucket_snapshots()] == [bucket_id]

    asyncio.run(scenario())


def test_what_extras_bring_is_not_needed() -> None:
    """A core install gives everything but two storages, also when other packages are installed beside it."""
    modules = sorted({module for modules in MODULES_OF_EXTRAS.values() for module in modules})
    names = [
        name for name in postdate.__all__ if name not in ("RocksDBBucketSnapshotStorage", "S3BucketSnapshotStorage")
    ]

    result = run_without(modules, f"from postdate import {', '.join(names)}; print(__version__)")

    assert (result.stdout, result.stderr) == (f"{postdate.__version__}\n", "")


NEEDS_EXTRA = pytest.mark.parametrize(
    ("name", "missing", "extra"),
    [("RocksDBBucketSnapshotStorage", "rocksdict", "rocksdb"), ("S3BucketSnapshotStorage", "boto3", "s3")],
)


@pytest.mark.slow
@NEEDS_EXTRA
def test_a_storage_that_is_used_says_which_extra_it_needs(name: str, missing: str, extra: str) -> None:
    result = run_without([missing], f"from postdate import {name}\n{name}('data')")

    assert result.stderr.splitlines()[-1] == (
        f"ImportError: postdate.{name}: {missing} is not installed: {install(extra)}"
    )


@pytest.mark.slow
@NEEDS_EXTRA
def test_every_name_can_be_asked_for_without_the_extra_that_brings_it(name: str, missing: str, extra: str) -> None:
    """By `hasattr`, by tools that look at all that `dir` names, and by `import *`."""
    program = f"""
import inspect, postdate
from postdate import *
assert all(hasattr(postdate, name) for name in dir(postdate))
assert not hasattr(postdate, "BucketTracker")
assert not isinstance(postdate.MemoryBucketSnapshotStorage(), postdate.{name})
print(inspect.getdoc(dict(inspect.getmembers(postdate))["{name}"]))
"""
    result = run_without([missing], program)

    assert (result.stdout, result.stderr) == (
        f"Not usable here: {missing} is not installed: {install(extra)}.\n",
        "",
    )


def test_a_misspelled_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'postdate' has no attribute 'BucketTracker'"):
        _ = postdate.BucketTracker


def test_the_package_defines_no_name_of_its_own() -> None:
    """Names that programs import are defined in the rooms where they belong, and are only listed here."""
    tree = ast.parse((ROOT / "postdate/__init__.py").read_text())

    assert [node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef | ast.FunctionDef)] == [
        "_refuse_shadowed_rooms",
        "__getattr__",
        "__dir__",
    ]


@pytest.mark.parametrize("shadow", ["tracker.py", "tracker/__init__.py", "snapshot_storage/__init__.py"])
def test_a_file_of_the_name_of_a_package_of_postdates_is_named(shadow: str, tmp_path: Path) -> None:
    """A program beside its own `tracker/` would get half of each otherwise, with an error about neither."""
    file = tmp_path / shadow
    file.parent.mkdir(exist_ok=True)
    file.touch()
    (tmp_path / "program.py").write_text("import postdate; print(postdate.Position(1, 2))")
    command = [sys.executable, "program.py"]
    options = {"cwd": tmp_path, "env": {"PYTHONPATH": str(ROOT)}, "capture_output": True, "text": True, "check": False}

    shadowed = subprocess.run(command, **options)
    file.rename(file.with_name("other.py"))
    alone = subprocess.run(command, **options)

    room = shadow.partition("/")[0].removesuffix(".py")
    advice = "rename it, or run Python from another folder"
    assert shadowed.stderr.splitlines()[-1] == (
        f"ImportError: {file} comes before Postdate's own package '{room}': {advice}"
    )
    assert (alone.stdout, alone.stderr) == ("1:2\n", "")


@pytest.mark.slow
def test_importing_the_package_imports_no_other_room() -> None:
    result = run_without(
        [], "import sys, postdate; print(*(sys.modules.keys() & {'numpy', 'tracker', 'managed_ledger'}))"
    )

    assert (result.stdout, result.stderr) == ("\n", "")


def test_a_program_and_the_service_have_the_same_defaults() -> None:
    assert BrokerConfig().tracker == postdate.TrackerConfig()
    assert postdate.TrackerConfig().factory_class_name == postdate.BUCKET_FACTORY


@pytest.mark.parametrize("spelling", FACTORY_CLASS_NAMES)
def test_the_configuration_names_the_factory(spelling: str) -> None:
    config = postdate.TrackerConfig(tracker_factory_class_name=spelling)

    factory = postdate.tracker_factory(config, postdate.MemoryBucketSnapshotStorage(), now_ms=FakeClock())

    assert type(factory).__name__ == FACTORY_CLASS_NAMES[spelling].rpartition(".")[2]


def test_an_unknown_factory_is_refused() -> None:
    with pytest.raises(ValueError, match=r"must be one of the two of Pulsar, but is mine\.Factory"):
        postdate.TrackerConfig(tracker_factory_class_name="mine.Factory")


_INTEGERS = sorted(one.name for one in fields(postdate.TrackerConfig) if one.type is int)


@pytest.mark.parametrize("value", [2**63, 2**70, -(2**63) - 1, 1.5, "1", None])
@pytest.mark.parametrize("name", _INTEGERS)
def test_a_number_of_the_configuration_is_an_integer_of_64_bits(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"^{name} must be an integer from"):
        postdate.TrackerConfig(**{name: value})


def test_without_a_storage_only_the_in_memory_tracker_is_made() -> None:
    """The default would forget nothing, so it does not become another kind by omission."""
    in_memory = postdate.TrackerConfig(tracker_factory_class_name=postdate.IN_MEMORY_FACTORY)

    factory = postdate.tracker_factory(in_memory, None, now_ms=FakeClock())

    assert isinstance(factory, postdate.InMemoryDelayedDeliveryTrackerFactory)
    with pytest.raises(ValueError, match="the bucket tracker needs a storage"):
        postdate.tracker_factory(postdate.TrackerConfig(), None, now_ms=FakeClock())


@pytest.mark.parametrize("spelling", [postdate.BUCKET_FACTORY, postdate.IN_MEMORY_FACTORY])
def test_an_index_for_several_cursors_is_refused(spelling: str) -> None:
    """Each tracker would have an index of its own all the same."""
    config = postdate.TrackerConfig(is_index_shared=True, tracker_factory_class_name=spelling)

    with pytest.raises(ValueError, match="is_index_shared is for the service alone"):
        postdate.tracker_factory(config, postdate.MemoryBucketSnapshotStorage(), now_ms=FakeClock())


@pytest.mark.parametrize(
    ("is_snapshot_lost", "read_again"),
    [(False, [(7, 4)]), (True, [(7, 1), (7, 3), (7, 4)])],
    ids=["snapshots are there", "snapshots are lost"],
)
def test_a_restart_misses_nothing_if_the_log_is_read_from_the_mark_delete_position(
    is_snapshot_lost: bool, read_again: list[tuple[int, int]]
) -> None:
    """As `docs/embedding.md` says, step 5: the index has what was sealed and can be read, the log has the rest.

    Messages that were acknowledged meanwhile never come.
    """

    async def main() -> None:
        config = postdate.TrackerConfig(index_count_at_close_min=1)
        deliver_at_ms = virtual_now_ms() + 5_000
        log = [(7, entry_id, deliver_at_ms) for entry_id in range(5)]
        available = asyncio.Event()
        async with postdate.MemoryBucketSnapshotStorage() as storage:
            factory = postdate.BucketDelayedDeliveryTrackerFactory(
                config, storage, now_ms=virtual_now_ms, run_blocking=run_inline
            )

            def context(cursor: postdate.MemoryCursor) -> postdate.TrackerContext:
                return postdate.TrackerContext(
                    topic_name="orders", cursor_name="billing", cursor=cursor, on_available=available.set
                )

            first = postdate.MemoryCursor()
            tracker = factory.new_tracker(context(first))
            # The last message is in the log, and this life does not come to it.
            for ledger_id, entry_id, deliver_at in log[:4]:
                assert tracker.add_message(ledger_id, entry_id, deliver_at)
            await tracker.close()
            found = await storage.list_bucket_snapshots()
            assert found
            if is_snapshot_lost:
                for one in found:
                    await storage.delete_bucket_snapshot(one.bucket_id)

            second = postdate.MemoryCursor(mark_delete_position=postdate.Position(7, 0), properties=first.properties)
            second.acknowledge(7, 2)
            tracker = factory.new_tracker(context(second))
            added = []
            for ledger_id, entry_id, deliver_at in log:
                position = postdate.Position(ledger_id, entry_id)
                if position <= second.mark_delete_position or position == (7, 2):
                    continue
                while tracker.is_recovering(ledger_id):
                    available.clear()
                    await available.wait()
                if not tracker.contains_message(*position):
                    assert tracker.add_message(*position, deliver_at)
                    added.append(position)
            assert added == read_again
            # To add again what is tracked changes nothing.
            assert tracker.add_message(7, 3, deliver_at_ms)

            await asyncio.sleep(6)
            rows = tracker.get_scheduled_messages(100).to_rows()
            await tracker.close()
            assert [row[1:] for row in rows] == [(7, 1), (7, 3), (7, 4)]

    run_virtually(main())


def test_a_memory_cursor_tells_its_listeners() -> None:
    cursor = postdate.MemoryCursor()
    told: list[postdate.Position] = []
    cursor.add_listener(told.append)

    cursor.mark_delete_position = postdate.Position(3, 4)
    cursor.remove_listener(told.append)
    cursor.mark_delete_position = postdate.Position(3, 5)

    assert told == [(3, 4)]
