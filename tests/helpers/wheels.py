"""The project's wheel, and the wheels that an extra needs: what tests of the installation install.

A run of the tests builds and downloads them once: its workers share a folder.
"""

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
_NOT_PACKAGED: Final = shutil.ignore_patterns(".*", "build", "*.egg-info", "tests", "benchmarks", "data", "__pycache__")
_PIP: Final = (sys.executable, "-m", "pip", "--disable-pip-version-check")


@cache
def can_reach_an_index() -> bool:
    """Whether pip gets an answer about a package."""
    command = [*_PIP, "download", "--quiet", "--no-deps", "--dest", os.devnull, "numpy==0"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return "from versions: 1" in found.stderr


def built_wheel(factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from a copy: a build in the checkout would leave modules for the next one."""
    with _shared_folder(factory, "wheel") as folder:
        if not list(folder.glob("*.whl")):
            shutil.copytree(ROOT, folder / "source", ignore=_NOT_PACKAGED, dirs_exist_ok=True)
            command = [*_PIP, "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(folder / "source")]
            subprocess.run(command, check=True, timeout=300)
        return next(folder.glob("*.whl"))


def downloaded_wheels(factory: pytest.TempPathFactory, extras: str, *, python_version: str | None = None) -> Path:
    """Return a folder with the wheel and all that it needs with some extras, by default for the tests' own Python."""
    wheel = built_wheel(factory)
    version = ["--python-version", python_version] if python_version else []
    with _shared_folder(factory, f"wheels-{extras}-{python_version}") as folder:
        if not (folder / wheel.name).exists():
            constraints = ["--constraint", str(ROOT / "constraints.txt")]
            options = ["--quiet", "--only-binary", ":all:", *version, "--dest", str(folder)]
            wanted = [f"{wheel}[{extras}]", "setuptools>=77"]
            subprocess.run([*_PIP, "download", *options, *constraints, *wanted], check=True, timeout=300)
        return folder


@contextmanager
def _shared_folder(factory: pytest.TempPathFactory, name: str) -> Iterator[Path]:
    """Give the folder of this name that all workers of a run have, to one of them at a time."""
    of_run = factory.getbasetemp().parent if "PYTEST_XDIST_WORKER" in os.environ else factory.getbasetemp()
    folder = of_run / name
    folder.mkdir(exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder
