"""A Debian that tests can fill and run: the base of the container image, and a machine that boots systemd.

Debian's mirror is asked once; `build/` keeps the result. Packages that pip installs inside come from a folder of
wheels, so no program inside needs a network. The helper needs Debian's own tools, which CI installs and without which
it fails. It also needs namespaces of its own, which only a privileged user of the machine can have. Without them tests
are skipped everywhere.
"""

import fcntl
import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]

PYTHON_VERSION: Final = "3.11"
"""The Python of Debian bookworm."""

_PACKAGES: Final = ("ca-certificates", "dbus", "python3", "python3-venv", "systemd", "systemd-sysv")


def need_tools(*names: str) -> None:
    """Skip the test where it cannot run; in CI a missing tool is a failure, as `.ci/run` installs all of them."""
    if not _has_namespaces():
        pytest.skip("this user may not make mount and process namespaces here, even as root of a container")
    missing = [name for name in ("mmdebstrap", *names) if shutil.which(name) is None]
    if not missing:
        return
    reason = f"{', '.join(missing)}: missing"
    if "CI" in os.environ:
        pytest.fail(f"{reason}, which CI must have")
    pytest.skip(reason)


def _has_namespaces() -> bool:
    """Try what a build and a boot need first: root, and a process tree with mounts of its own."""
    if os.geteuid() != 0:
        return False
    command = ["unshare", "--mount", "--pid", "--uts", "--ipc", "--fork", "--mount-proc", "true"]
    return subprocess.run(command, capture_output=True, check=False, timeout=30).returncode == 0


def debian_tar() -> Path:
    """Return the root folder of a small Debian with Python and systemd, as a tar file; `python` is its Python."""
    path = ROOT / "build" / "debian-bookworm.tar"
    path.parent.mkdir(exist_ok=True)
    # Two workers of pytest-xdist may want it at the same time.
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            unfinished = path.with_suffix(".unfinished.tar")
            link = '--customize-hook=ln -s python3 "$1/usr/bin/python"'
            include = f"--include={','.join(_PACKAGES)}"
            command = ["mmdebstrap", "--quiet", "--variant=minbase", include, link, "bookworm", str(unfinished)]
            subprocess.run(command, check=True, timeout=240)
            unfinished.rename(path)
    return path


def pip_configuration(wheels: Path) -> str:
    """Return a `pip.conf` that lets pip install from a folder alone."""
    return f"[global]\nno-index = true\nfind-links = {wheels}\ndisable-pip-version-check = true\n"
