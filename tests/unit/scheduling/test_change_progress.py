"""A change that takes long says how far it is: how many messages it has looked at, then how many it has changed."""

import threading
from typing import Any

import pytest

from postdate.scheduling.cli import _progress
from postdate.scheduling.errors import ScheduleRequestError

SEARCHING = {"finished": False, "searching": True, "searched": 300, "matched": 7, "done": 0}
CHANGING = {"finished": False, "searching": False, "searched": 1_000, "matched": 20, "done": 5}
FINISHED = CHANGING | {"finished": True, "done": 20}


class OperationTeller:
    """Answers questions about an operation with one state after the other."""

    def __init__(self, states: list[dict[str, Any] | None]) -> None:
        self.states = list(states)
        self.is_asked_out = threading.Event()
        self.asked: set[str] = set()

    def operation(self, operation_id: str) -> dict[str, Any]:
        self.asked.add(operation_id)
        state = self.states.pop(0)
        if not self.states:
            self.is_asked_out.set()
        if state is None:
            raise ScheduleRequestError(404, "not yet", field="operation", advice="")
        return state

    def look(self, path: str, asked: object) -> dict[str, Any]:
        return {"total": 1_000}


@pytest.mark.parametrize(
    ("states", "told"),
    [
        ([None, SEARCHING, SEARCHING, CHANGING, FINISHED], "searched: 1,000 messages\ncancelled: 20 messages\n"),
        ([SEARCHING, FINISHED], "searched: 1,000 messages\n"),
        ([CHANGING, FINISHED], "cancelled: 20 messages\n"),
        ([FINISHED], ""),
    ],
)
def test_a_change_says_what_it_does_and_of_how_many(
    states: list[dict[str, Any] | None], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    service = OperationTeller(states)

    with _progress(service, "/topics/t/scheduled", "cancelled", "an-id", interval_s=0.001):
        assert service.is_asked_out.wait(20)

    assert capsys.readouterr().err == told
    assert service.asked == {"an-id"}


def test_a_change_that_is_over_soon_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    service = OperationTeller([])

    with _progress(service, "/topics/t/scheduled", "cancelled", "an-id"):
        pass

    assert capsys.readouterr().err == ""
    assert not service.asked
