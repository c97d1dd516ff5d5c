"""The project's wheel, and the wheels that an extra needs: what tests of the installation install."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
_NOT_PACKAGED: Final = shutil.ignore_patterns(".*", "build", "*.egg-info", "tests", "benchmarks", "data", "__pycache__")
_PIP: Final = (sys.executable, "-m", "pip", "--disable-pip-version-check")


def can_reach_an_index() -> bool:
    """Whether pip gets an answer about a package."""
    command = [*_PIP, "download", "--quiet", "--no-deps", "--dest", os.devnull, "numpy==0"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return "from versions: 1" in found.stderr


def built_wheel(folder: Path) -> Path:
    """Build the wheel from a copy: a build in the checkout would leave modules for the next one."""
    shutil.copytree(ROOT, folder / "source", ignore=_NOT_PACKAGED)
    command = [*_PIP, "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(folder / "source")]
    subprocess.run(command, check=True, timeout=300)
    return next(folder.glob("*.whl"))


def downloaded_wheels(folder: Path, extras: str, *, python_version: str) -> Path:
    """Fill a folder with the wheel and all that it needs with some extras, and return the folder."""
    wheel = built_wheel(folder.with_name(f"{folder.name}-build"))
    constraints = ["--constraint", str(ROOT / "constraints.txt")]
    wanted = [f"{wheel}[{extras}]", "setuptools>=77"]
    options = ["--quiet", "--only-binary", ":all:", "--python-version", python_version, "--dest", str(folder)]
    subprocess.run([*_PIP, "download", *options, *constraints, *wanted], check=True, timeout=300)
    return folder
