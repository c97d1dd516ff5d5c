"""Local tables: no two processes share a folder, nobody else can write into it, and old ones do not pile up."""

import fcntl
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from postdate.broker.configuration import object_storage
from postdate.broker.configuration.object_storage import default_cache_parent
from postdate.broker.errors import ServiceStartError
from postdate.broker.service.cache_folder import CacheFolder

ONE, OTHER = "1" * 32, "2" * 32


@pytest.fixture(autouse=True)
def _temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CACHE_DIRECTORY", f"{tmp_path}:/elsewhere")


def test_the_default_is_on_a_disk_where_there_is_such_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert default_cache_parent() == tmp_path
    monkeypatch.delenv("CACHE_DIRECTORY")
    monkeypatch.setattr(object_storage, "LARGE_TEMPORARY", tmp_path)
    assert default_cache_parent() == tmp_path
    monkeypatch.setattr(object_storage, "LARGE_TEMPORARY", tmp_path / "none")
    assert default_cache_parent() == Path(tempfile.gettempdir())


def test_the_folder_itself_is_locked(tmp_path: Path) -> None:
    """As systemd-tmpfiles leaves such folders alone."""
    taken = CacheFolder.claim(tmp_path / "cache", ONE)
    opened = os.open(tmp_path / "cache", os.O_RDONLY)
    with pytest.raises(BlockingIOError):
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    taken.close()
    fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(opened)


def test_each_process_has_a_folder_of_its_own_and_finds_its_tables_again(tmp_path: Path) -> None:
    first, second = CacheFolder.claim(None, ONE), CacheFolder.claim(None, ONE)
    assert first.path != second.path
    assert first.path.stat().st_mode & 0o077 == first.path.parent.stat().st_mode & 0o077 == 0
    (first.path / "table").touch()
    first.close()
    again = CacheFolder.claim(None, ONE)
    assert (again.path / "table").exists()
    again.close()
    second.close()


def test_tables_of_another_place_are_removed(tmp_path: Path) -> None:
    first = CacheFolder.claim(tmp_path / "cache", ONE)
    (first.path / "0x00000000_0xffffffff").mkdir()
    foreign = tmp_path / "cache" / ("3" * 32)
    (foreign / "notes").mkdir(parents=True)
    first.close()
    second = CacheFolder.claim(tmp_path / "cache", OTHER)
    assert not first.path.exists()
    assert foreign.exists()
    assert second.path.is_dir()
    second.close()


def test_a_named_folder_is_refused_while_another_process_has_it(tmp_path: Path) -> None:
    program = (
        "from pathlib import Path; from postdate.broker.service.cache_folder import CacheFolder; import sys; "
        f"CacheFolder.claim(Path(sys.argv[1]), {ONE!r}); print('ready', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        with pytest.raises(ServiceStartError, match=f"cacheDirectory={tmp_path} is another process's"):
            CacheFolder.claim(tmp_path, ONE)
        process.kill()
    CacheFolder.claim(tmp_path, ONE).close()


def test_a_folder_that_others_can_write_into_is_refused(tmp_path: Path) -> None:
    own = tmp_path / f"postdate-{os.getuid()}"
    own.mkdir()
    own.chmod(0o777)
    with pytest.raises(ServiceStartError, match="is not a folder of this user alone"):
        CacheFolder.claim(None, ONE)
    own.rmdir()
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    own.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ServiceStartError, match="is not a folder of this user alone"):
        CacheFolder.claim(None, ONE)
