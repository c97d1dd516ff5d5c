"""The log lines of a tracker about actions that fail."""

import logging

import pytest

from tracker.core.actions import Action, LoadSegments, PutProperty
from tracker.shell.outages import Outages
from tracker.stats import TrackerStats


class CursorFullError(Exception):
    """The error of a cursor, which the tracker does not know."""


@pytest.mark.parametrize(
    ("action", "is_traced"), [(PutProperty(1, "key", 7), False), (LoadSegments(1, 7, 1, 1, 5, ()), True)]
)
def test_a_cursor_that_cannot_write_is_told_in_one_line_and_a_defect_with_its_trace(
    caplog: pytest.LogCaptureFixture, action: Action, *, is_traced: bool
) -> None:
    outages = Outages("topic / sub", TrackerStats(), 10)

    with caplog.at_level(logging.WARNING):
        outages.note_failure(action, CursorFullError("no room"), 0)
        # An outage is told once.
        outages.note_failure(action, CursorFullError("no room"), 1)

    (line,) = caplog.records
    assert bool(line.exc_info) == is_traced
    assert is_traced or line.getMessage() == "topic / sub: PutProperty failed: no room"
