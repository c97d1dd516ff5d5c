"""The files with doctests: those that have an example. Looking for some in every module takes a worker a second."""

from collections.abc import Generator
from pathlib import Path

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path: Path) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Collect the doctests of a file if there are any."""
    collectors = yield
    if b">>> " in file_path.read_bytes():
        return collectors
    return [collector for collector in collectors if type(collector) is pytest.Module]
