"""The Go and the Java client: one small program on each, built at first use and whenever it has changed.

Both take a task as JSON and answer with a line of JSON; `programs/go_client/main.go` says which tasks there are. The
Java one has Pulsar's admin client besides. Versions are pinned: by `go.mod` and `go.sum`, and as the jars of the real
Pulsar. Needs Go, or Java 17 and Maven.
"""

import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.services import real_pulsar

_ROOT = Path(__file__).parents[3]
_PROGRAMS = Path(__file__).parent / "programs"
_BUILD = _ROOT / "build" / "clients"
_TIMEOUT_S = 90

LANGUAGES = ("go", "java")


def require(language: str) -> None:
    """Skip on a laptop without what a client needs; fail in CI, where it must be."""
    missing = _missing(language)
    if missing and os.environ.get("CI"):
        pytest.fail(f"the {language} client needs {' and '.join(missing)}, which CI must have")
    if missing:
        pytest.skip(f"the {language} client needs {' and '.join(missing)}")


def build_all() -> None:
    """Build the programs of the clients whose tools are all installed here."""
    for language in LANGUAGES:
        if not _missing(language):
            build(language)


def build(language: str) -> list[str]:
    """Build a client's program unless it was done, and return the command that runs it."""
    return _build_go() if language == "go" else _build_java()


def run(language: str, task: str, **asked: Any) -> dict[str, Any]:
    """Run a task and return what it says: mostly `error` (empty for none), `sent`, `received`, `early`."""
    return Running(language, task, **asked).outcome()


class Running:
    """A task that runs."""

    def __init__(self, language: str, task: str, **asked: Any) -> None:
        given = {name: str(value) if isinstance(value, Path) else value for name, value in asked.items()}
        command = [*build(language), json.dumps({"task": task} | given)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    @property
    def is_running(self) -> bool:
        """Whether it has not ended yet."""
        return self._process.poll() is None

    def outcome(self) -> dict[str, Any]:
        """Wait for its end and return what it said."""
        out, errors = self._process.communicate(timeout=_TIMEOUT_S)
        assert self._process.returncode == 0, errors[-4_000:]
        outcome: dict[str, Any] = json.loads(out.splitlines()[-1])
        return outcome


def _missing(language: str) -> list[str]:
    if language == "java":
        return real_pulsar.missing_tools() + ([] if shutil.which("javac") else ["javac"])
    return [] if shutil.which("go") else ["go"]


def _build_go() -> list[str]:
    folder, program = _PROGRAMS / "go_client", _BUILD / "go_client"
    if _is_new([*folder.iterdir()], program):
        # CGO is off so that a C compiler is not needed.
        environment = os.environ | {"CGO_ENABLED": "0"}
        subprocess.run(["go", "build", "-o", str(program), "."], cwd=folder, env=environment, check=True)
        _note([*folder.iterdir()], program)
    return [str(program)]


def _build_java() -> list[str]:
    source, classes = _PROGRAMS / "JavaClient.java", _BUILD / "java"
    jars = f"{real_pulsar.fetch_jars()}/*"
    if _is_new([source], classes):
        subprocess.run(["javac", "-proc:none", "-d", str(classes), "-cp", jars, str(source)], check=True)
        _note([source], classes)
    # Netty and Log4j write to the standard error, which is shown when something fails.
    return ["java", "-Xmx256m", "-cp", f"{classes}{os.pathsep}{jars}", "JavaClient"]


def _state(sources: list[Path]) -> str:
    return hashlib.sha256(b"".join(path.read_bytes() for path in sorted(sources))).hexdigest()


def _is_new(sources: list[Path], target: Path) -> bool:
    noted = target.with_suffix(".built")
    return not target.exists() or not noted.exists() or noted.read_text() != _state(sources)


def _note(sources: list[Path], target: Path) -> None:
    target.with_suffix(".built").write_text(_state(sources))
