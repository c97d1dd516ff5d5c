"""One answer of several services, as pure functions."""

import json
from typing import Any

import msgspec
import pytest

from postdate.broker.admin import merging
from postdate.broker.admin.backup_handlers import BackupAnswer
from postdate.broker.admin.refusal import RefusalError
from postdate.broker.admin.replies import Reply, whole
from postdate.broker.admin.scheduled_requests import BackupRequest
from postdate.broker.scheduled.answers import OperationAnswer, Totals, both


def reply(service: str, status: int, body: object) -> Reply:
    return Reply(service, status, body.encode() if isinstance(body, str) else msgspec.json.encode(body))


def operation(**fields: Any) -> OperationAnswer:
    known: dict[str, Any] = {
        "id": "b",
        "kind": "backup",
        "topic": None,
        "searching": False,
        "searched": 0,
        "error": None,
    }
    return OperationAnswer(**both("started", 0), **known | {"matched": 10, "done": 3, "finished": False} | fields)


def test_what_one_service_does_not_have_another_may() -> None:
    names = whole(list[str], merging.all_names)
    nothing = reply("a", 404, {"reason": "Tenant not found"})

    assert names(None, [nothing, reply("b", 200, ["x"])]) == ["x"]
    with pytest.raises(RefusalError, match="Tenant not found") as refused:
        names(None, [nothing, reply("b", 404, {"reason": "none"})])
    assert refused.value.status == 404


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (reply("b", 0, "Connection refused"), "b does not answer: Connection refused"),
        (reply("b", 503, {"error": "The log cannot be used"}), "b answers 503: The log cannot be used"),
        (reply("b", 502, "<html>"), "b answers 502: <html>"),
        (reply("b", 401, {"reason": "Authentication required"}), "b answers 401: Authentication required"),
    ],
)
def test_an_answer_without_a_part_is_refused_and_says_whose(other: Reply, told: str) -> None:
    with pytest.raises(RefusalError) as refused:
        whole(list[str], merging.all_names)(None, [reply("a", 200, ["x"]), other])

    assert (refused.value.status, str(refused.value)) == (503, f"Not all services answer; {told}")


def test_totals_are_added_up() -> None:
    one = Totals(
        topics=1, delayed=2, overdue=3, due_within_minute=4, due_within_hour=5, due_within_day=6, unknown=7, estimated=8
    )

    assert merging.sums(None, [one, one, one]) == Totals(
        topics=3, delayed=6, overdue=9, due_within_minute=12, due_within_hour=15, due_within_day=18, unknown=21,
        estimated=24,
    )  # fmt: skip


def test_a_backup_of_all_is_as_far_as_its_parts() -> None:
    merged = merging.operation_of_all(None, [operation(), operation(done=10, finished=True, error="full")])

    assert (merged.matched, merged.done, merged.finished, merged.error) == (20, 13, False, "full")


def test_the_files_of_a_backup_are_those_of_all() -> None:
    one = BackupAnswer(target="/b", **both("made", 7), files=2, bytes=30, new_files=1, new_bytes=10, missing=["a", "b"])
    other = BackupAnswer(target="/b", **both("made", 8), files=5, bytes=3, new_files=0, new_bytes=0, missing=["b", "c"])

    merged = merging.backup_of_all(BackupRequest(target="/b"), [one, other])

    assert (merged.files, merged.bytes, merged.new_files, merged.new_bytes) == (7, 33, 1, 10)
    assert merged.missing == ["b"]


def test_health_is_as_bad_as_its_worst_part() -> None:
    well = {"status": "ok", "version": "1", "pid": 7, "uptime_ms": 1}
    guarded = {"status": "ok", "pid": 7, "uptime_ms": 1}
    failing = reply("b", 503, well | {"status": "failing", "problems": ["the disk is full"]})

    def merged(own: dict[str, Any], *others: Reply) -> tuple[int, Any]:
        answer = merging.health_of_all(None, [reply("a", 503 if "problems" in own else 200, own), *others])
        assert isinstance(answer.text, str)
        return answer.status, json.loads(answer.text)

    assert merged(well, reply("b", 200, well)) == (200, well)
    assert merged(well, failing) == (503, well | {"status": "failing", "problems": ["b: the disk is full"]})
    own = well | {"status": "failing", "problems": ["slow"]}
    assert merged(own, failing)[1]["problems"] == ["slow", "b: the disk is full"]
    assert merged(guarded, failing) == (503, guarded | {"status": "failing"})
    assert merged(guarded, reply("b", 0, "gone")) == (503, guarded | {"status": "failing"})
    silent = reply("b", 503, guarded | {"status": "failing"})
    assert merged(well, silent)[1]["problems"] == ["b: it is failing"]


def test_pulsars_own_check_has_a_line_for_each_problem() -> None:
    def merged(*replies: Reply) -> tuple[int, str | None]:
        answer = merging.health_lines_of_all(None, replies)
        return answer.status, answer.text

    assert merged(reply("a", 200, "ok"), reply("b", 200, "ok")) == (200, "ok")
    assert merged(reply("a", 503, "x\ny"), reply("b", 503, "z"), reply("c", 0, "gone")) == (
        503,
        "x\ny\nb: z\nc does not answer: gone",
    )
