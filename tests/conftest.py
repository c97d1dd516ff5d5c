"""What holds for every test: no test fails because the machine is busy; and what tests of commands share."""

import logging
from collections.abc import Iterator

import pytest
from hypothesis import settings

# Tests name no numbers of their own: how much is tried is chosen by `--hypothesis-profile`. `ci` tries the same in each
# run, so that a failure there is of the change; `long` is for a hunt by hand.
settings.register_profile("fast", deadline=None, max_examples=10, stateful_step_count=30)
settings.register_profile("default", deadline=None, max_examples=100, stateful_step_count=50)
settings.register_profile(
    "ci", deadline=None, max_examples=300, stateful_step_count=60, derandomize=True, print_blob=True
)
settings.register_profile("long", deadline=None, max_examples=5_000, stateful_step_count=100)
settings.load_profile("default")


@pytest.fixture
def restored_logging() -> Iterator[None]:
    """For tests that run a command in their own process: commands set up logging for their process."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
