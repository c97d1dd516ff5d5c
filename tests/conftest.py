"""Settings of all tests: the examples Hypothesis tries, the tests that share a worker, the file for their times."""

import gc
import logging
import os
import shutil
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import settings

from tests.helpers import lanes

# Properties name no numbers of their own: how much is tried is chosen by `--hypothesis-profile`. `ci` tries the same in
# each run, so that a failure there is of the change; `long` is for a hunt by hand.
settings.register_profile("fast", deadline=None, max_examples=10, stateful_step_count=30)
settings.register_profile("default", deadline=None, max_examples=60, stateful_step_count=50)
settings.register_profile("ci", deadline=None, max_examples=200, stateful_step_count=60, derandomize=True)
settings.register_profile("long", deadline=None, max_examples=5_000, stateful_step_count=100)
settings.load_profile("default")

TESTS = Path(__file__).parent
TOGETHER = ("real_pulsar", "java")
"""Marks of tests that share a Java process: all of them run in one worker, one after the other, and begin first."""

ID_LENGTH_MAX = 60
JAVA_TIMEOUT_S = 600


MEMORY = Path("/dev/shm")
MEMORY_BYTES_MIN = 4 * 1024**3


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--durations-file", type=Path, help="Write here how long each folder, file and test took.")
    parser.addoption("--all-lanes", action="store_true", help="Run unchanged lanes too (`helpers/lanes.py`).")
    parser.addoption("--ask-pulsar", action="store_true", help="Ask a real Pulsar again, and write its answers.")
    parser.addoption("--in-memory", action="store_true", help=f"Put folders of tests into {MEMORY} if it has room.")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None]:
    """Let tests of one file, one Java process, or one group by mark, run in one worker, with their fixtures."""
    groups = [_group_of(item) for item in items]
    for item, group in zip(items, groups, strict=True):
        # With two marks a test would be in a third group, whose name is both.
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(group))
        # One that is ended in the middle of a call to Java leaves a session that no other test can use.
        if item.get_closest_marker("java") is not None and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(JAVA_TIMEOUT_S))
    yield
    # Those that a mark leaves out are gone now.
    if not (config.getoption("--all-lanes") or config.option.file_or_dir):
        lanes.leave_out_unchanged(config, items)
    # Pytest has put tests of one parameter of a session next to each other, so the order of groups comes last.
    ranks = _ranks(list(dict.fromkeys(_group_of(item) for item in items)))
    items.sort(key=lambda item: ranks[_group_of(item)])


def pytest_collection_finish() -> None:
    """Leave what collecting made out of every later search for cycles: thousands of tests stay until the end."""
    gc.collect()
    gc.freeze()


def _ranks(groups: list[str]) -> dict[str, float]:
    """Return where each group begins: 0 is the begin of a run, and 1 is its end.

    The longest groups decide when a run ends, so they begin first. The kinds of tests take turns, in equal shares all
    the time: what waits for services and what computes uses the processors better side by side than one after the
    other. The last files of a kind begin first, as those of the tracker and of the whole service take longest.
    """
    kinds: dict[str, list[str]] = {}
    for group in reversed(groups):
        path = Path(group)
        kinds.setdefault(path.relative_to(TESTS).parts[0] if path.is_relative_to(TESTS) else "", []).append(group)
    ranks = {group: number / len(kind) for kind in kinds.values() for number, group in enumerate(kind)}
    return ranks | dict.fromkeys(TOGETHER, -1.0)


def _group_of(item: pytest.Item) -> str:
    for mark in TOGETHER:
        if item.get_closest_marker(mark) is not None:
            return mark
    own = item.get_closest_marker("xdist_group")
    return str(item.path if own is None else own.args[0])


def pytest_configure(config: pytest.Config) -> None:
    # Workers of xdist are given the width of the terminal; tables of commands would follow it.
    os.environ.pop("COLUMNS", None)
    if config.getoption("--in-memory") and _has_room(MEMORY):
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))
    if hasattr(config, "workerinput"):
        return
    path = config.getoption("--durations-file")
    if path is not None:
        config.pluginmanager.register(_Durations(path))
    if config.getoption("--all-lanes") and not config.option.keyword:
        config.pluginmanager.register(lanes.LanesThatPass())
    if config.getoption("--ask-pulsar"):
        # Imported late, as most runs need no client of Pulsar.
        from tests.helpers.services.pulsars_answers import Recorder

        config.pluginmanager.register(Recorder())


def _has_room(folder: Path) -> bool:
    return folder.is_dir() and shutil.disk_usage(folder).free >= MEMORY_BYTES_MIN


def pytest_make_parametrize_id(val: object) -> str | None:
    """Name a long value by its beginning and length: workers report each test by its whole name."""
    if isinstance(val, bytes | str) and len(val) > ID_LENGTH_MAX:
        return f"{val[:20]!r}... of {len(val)}"
    return None


class _Durations:
    """Adds up what set-up, call and tear-down of each test took; in the process that the workers report to."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seconds: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid.split("@")[0]] += report.duration

    def pytest_sessionfinish(self) -> None:
        folders: Counter[str] = Counter()
        files: Counter[str] = Counter()
        for test, seconds in self._seconds.items():
            file = test.split("::")[0]
            files[file] += seconds
            folders[str(Path(file).parent)] += seconds
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(
            f"{sum(folders.values()):.1f} s, {len(self._seconds):,} tests\n\n"
            + "\n\n".join(_table(counted) for counted in (folders, files, self._seconds))
            + "\n"
        )


def _table(counted: Counter[str]) -> str:
    return "\n".join(f"{seconds:8.2f} s  {name}" for name, seconds in counted.most_common())


@contextmanager
def _restoring_logging() -> Iterator[None]:
    """Keep what a command sets up for its process from what follows, where a test ran it in its own."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture(autouse=True)
def _restored_logging() -> Iterator[None]:
    with _restoring_logging():
        yield


@pytest.fixture(autouse=True, scope="module")
def _restored_logging_of_a_module() -> Iterator[None]:
    """As a fixture of a module can run a command."""
    with _restoring_logging():
        yield
