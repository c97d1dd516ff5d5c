"""The services that the client tests run against: Postdate, and a real Pulsar where its tools are."""

import os

import pytest

from tests.helpers.services import real_pulsar
from tests.helpers.services.services import POSTDATE, REAL_PULSAR

KINDS = [POSTDATE, pytest.param(REAL_PULSAR, marks=pytest.mark.real_pulsar)]


def require_tools(kind: str) -> None:
    """Skip on a laptop without Java or Maven; fail in CI, where they must be."""
    missing = real_pulsar.missing_tools() if kind == REAL_PULSAR else []
    if missing and os.environ.get("CI"):
        pytest.fail(f"a real Pulsar needs {' and '.join(missing)}, which CI must have")
    if missing:
        pytest.skip(f"a real Pulsar needs {' and '.join(missing)}")
