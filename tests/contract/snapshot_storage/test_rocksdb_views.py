"""The temporary folders of readers: they go with their readers, also with those that are killed."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from snapshot_storage.rocksdb.config import RocksDBMemory
from snapshot_storage.rocksdb.folder import RocksDBFolder

WAIT_S = 60

# Opens a folder to read, says so, and lists it again for each line that it is given.
_READER = """
import sys
from pathlib import Path
from snapshot_storage.rocksdb.config import RocksDBMemory
from snapshot_storage.rocksdb.folder import RocksDBFolder

folder = RocksDBFolder.open(Path(sys.argv[1]), memory=RocksDBMemory(), is_read_only=True)
while True:
    print(len(folder.list(None, None)), flush=True)
    if not sys.stdin.readline():
        break
folder.close()
"""


@contextmanager
def _reader(folder: Path, temporary: Path) -> Iterator[subprocess.Popen[str]]:
    """Run a reader that has opened the folder, and close it in the end."""
    with subprocess.Popen(
        [sys.executable, "-c", _READER, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
        env=os.environ | {"TMPDIR": str(temporary)},
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "1\n"
        yield process


def _written(path: Path) -> Path:
    folder = RocksDBFolder.open(path, memory=RocksDBMemory(), is_read_only=False)
    folder.create(b"metadata", [b"segment"], bucket_key="k", topic_name="t", cursor_name="c")
    folder.close()
    return path


def _views(temporary: Path) -> set[str]:
    return {path.name for path in temporary.iterdir()}


@pytest.mark.slow
def test_the_view_of_a_killed_reader_goes_with_the_next_reader_and_no_living_one_does(tmp_path: Path) -> None:
    folder, temporary = _written(tmp_path / "snapshots"), tmp_path / "temporary"
    temporary.mkdir()
    with _reader(folder, temporary) as living:
        of_living = _views(temporary)
        with _reader(folder, temporary) as killed:
            killed.kill()
            killed.wait(WAIT_S)
        left = _views(temporary) - of_living
        assert len(left) == len(of_living) == 1

        with _reader(folder, temporary):
            assert not _views(temporary) & left
            assert _views(temporary) > of_living

        assert _views(temporary) == of_living
        assert living.stdin is not None
        assert living.stdout is not None
        living.stdin.write("\n")
        living.stdin.flush()
        assert living.stdout.readline() == "1\n"
    assert _views(temporary) == set()
    # The source is untouched by all that.
    with _reader(folder, temporary):
        pass


def test_a_view_without_an_owner_is_removed_only_when_it_is_old(tmp_path: Path) -> None:
    """It is of a version before, or another reader is about to lock it."""
    folder, temporary = _written(tmp_path / "snapshots"), tmp_path / "temporary"
    temporary.mkdir()
    for name, age_s in (("postdate-view-old", 2 * 24 * 3_600), ("postdate-view-new", 60), ("others", 2 * 24 * 3_600)):
        (temporary / name).mkdir()
        (temporary / name / "000001.sst").symlink_to(folder / "CURRENT")
        then_s = folder.stat().st_mtime - age_s
        os.utime(temporary / name, (then_s, then_s))

    with _reader(folder, temporary):
        pass

    assert _views(temporary) == {"postdate-view-new", "others"}
    assert (folder / "CURRENT").exists()
