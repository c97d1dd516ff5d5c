"""A disk of a few MiB that really gets full: a file system in memory, mounted for one test.

Only root may mount one. Without that a test is skipped on a laptop, and fails in CI, which runs as root.
"""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

FILL_BYTES = 2**16


@contextmanager
def small_disk(mount_point: Path, *, mib: int) -> Iterator[Path]:
    """Mount a disk of so many MiB at a folder that is made, and unmount it at the end."""
    mount_point.mkdir(parents=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={mib}m", "postdate-test", str(mount_point)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode and os.environ.get("CI"):
        pytest.fail(f"a small disk cannot be mounted, which CI must be able to: {mounted.stderr}")
    if mounted.returncode:
        pytest.skip(f"a small disk cannot be mounted: {mounted.stderr}")
    try:
        yield mount_point
    finally:
        # Lazily: a service that was killed may not be gone yet.
        subprocess.run(["umount", "--lazy", str(mount_point)], check=True)


def fill_up(disk: Path) -> Path:
    """Take all the room that is left, down to the last byte; returns the file that has it."""
    ballast = disk / "ballast"
    descriptor = os.open(ballast, os.O_WRONLY | os.O_CREAT)
    try:
        for size in (FILL_BYTES, 1):
            try:
                while True:
                    os.write(descriptor, os.urandom(size))
            except OSError:
                continue
    finally:
        os.close(descriptor)
    return ballast


def free_bytes(disk: Path) -> int:
    """The room that is left."""
    room = os.statvfs(disk)
    return room.f_bavail * room.f_frsize
