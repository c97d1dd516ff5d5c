"""What holds for every test: no test fails because the machine is busy; and what tests of commands share."""

import logging
from collections.abc import Iterator

import pytest
from hypothesis import settings

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


@pytest.fixture
def restored_logging() -> Iterator[None]:
    """For tests that run a command in their own process: commands set up logging for their process."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
