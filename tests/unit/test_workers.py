"""The workers of pytest-xdist: tests that share a fixture of their file, or a Java process, run in one of them."""

from pathlib import Path

import pytest


def test_a_test_has_the_group_of_its_file(request: pytest.FixtureRequest) -> None:
    """Without an error, a version of pytest that loses the group lets each test go to any worker."""
    if not hasattr(request.config, "workerinput"):
        pytest.skip("there are no workers")

    assert request.node.nodeid.endswith(f"@{Path(__file__)}")
