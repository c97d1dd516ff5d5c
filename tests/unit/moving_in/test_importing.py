"""`import_messages`: each message once by its id, over stopped runs, refusals of one message, and dry runs."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from managed_ledger.positions.value_types import Json
from postdate.moving_in.importing import PORTION_MESSAGES, Imported, StoredBefore, import_messages
from postdate.moving_in.messages import Found, Left, MovingInError, Waiting
from postdate.scheduling.errors import ScheduleRequestError, ServiceUnavailableError

URL = "http://127.0.0.1:8080"
DUE_MS = 1_900_000_000_000
MANY = 2 * PORTION_MESSAGES + 7


class Target:
    """Takes portions, all or none, and remembers them by id; ends after a number of portions."""

    def __init__(self, *, refused: Sequence[str] = (), portions_max: int | None = None) -> None:
        self.messages: dict[str, Json] = {}
        self.portions: list[int] = []
        self._refused, self._portions_max = refused, portions_max

    def post(self, lines: Sequence[Json]) -> None:
        if self._portions_max is not None and len(self.portions) >= self._portions_max:
            raise ServiceUnavailableError("no service answers")
        for line in lines:
            if line["id"] in self._refused:
                raise ScheduleRequestError(413, f"{line['id']} has 6000000 bytes", field="payload", advice="")
        self.portions.append(len(lines))
        self.messages |= {line["id"]: line for line in lines}


def waiting(count: int, *, deliver_at_ms: int = DUE_MS, acknowledged: list[str] | None = None) -> Found:
    for number in range(count):
        id_ = f"id-{number}"
        acknowledge = None if acknowledged is None else (lambda id_=id_: acknowledged.append(id_))
        yield Waiting(id_, b"%d" % number, deliver_at_ms, acknowledge=acknowledge)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state.db"


def run(found: Found, target: Target | None, state: Path) -> Imported:
    with StoredBefore(state, URL, "here", is_dry_run=target is None) as before:
        return import_messages(found, None if target is None else target.post, before, lambda _: None)


def test_a_run_that_was_stopped_goes_on_and_brings_nothing_twice(state: Path) -> None:
    first, second = Target(portions_max=1), Target()
    acknowledged: list[str] = []
    with pytest.raises(ServiceUnavailableError):
        run(waiting(MANY, acknowledged=acknowledged), first, state)
    assert len(acknowledged) == PORTION_MESSAGES

    went_on = run(waiting(MANY), second, state)

    assert (went_on.stored, went_on.stored_before) == (MANY - PORTION_MESSAGES, PORTION_MESSAGES)
    assert not first.messages.keys() & second.messages.keys()
    assert len(first.messages) + len(second.messages) == MANY
    assert run(waiting(MANY), third := Target(), state).stored_before == MANY
    assert third.messages == {}


def test_what_has_another_time_now_is_stored_again(state: Path) -> None:
    run(waiting(2), Target(), state)

    assert run(waiting(2, deliver_at_ms=DUE_MS + 1), target := Target(), state).stored == 2
    assert {line["deliverAtMs"] for line in target.messages.values()} == {DUE_MS + 1}


def test_another_target_is_another_import(state: Path) -> None:
    run(waiting(2), Target(), state)

    with StoredBefore(state, URL, "there", is_dry_run=False) as before:
        assert import_messages(waiting(2), Target().post, before, lambda _: None).stored == 2


def test_a_file_of_one_service_is_refused_for_another_spelling_of_its_address(state: Path) -> None:
    """It would bring everything again, also what was delivered, cancelled or moved."""
    run(waiting(2), Target(), state)

    for is_dry_run in (True, False):
        with pytest.raises(MovingInError, match=f"is of the service at {URL}, not http://localhost:8080: give"):
            StoredBefore(state, "http://localhost:8080", "here", is_dry_run=is_dry_run)
    assert run(waiting(2), Target(), state).stored_before == 2


def test_messages_that_are_refused_stay_for_one_reason_and_keep_no_other(state: Path) -> None:
    acknowledged: list[str] = []

    imported = run(waiting(6, acknowledged=acknowledged), Target(refused=("id-3", "id-5")), state)

    assert (imported.stored, imported.left) == (4, {"it is larger than maxMessageSize": 2})
    assert imported.names == {"it is larger than maxMessageSize": ["id-3", "id-5"]}
    assert acknowledged == ["id-0", "id-1", "id-2", "id-4"]


def test_a_dry_run_counts_and_leaves_no_trace(state: Path) -> None:
    """What comes twice counts once, as it would be stored once."""
    acknowledged: list[str] = []

    def twice() -> Iterator[Waiting | Left]:
        yield from waiting(MANY, acknowledged=acknowledged)
        yield from waiting(MANY, acknowledged=acknowledged)
        yield Left("x", "it is odd")

    assert run(twice(), None, state).stored == MANY
    assert (acknowledged, state.exists()) == ([], False)
    run(waiting(3), Target(), state)
    before = state.read_bytes()
    counted = run(twice(), None, state)
    assert (counted.stored, counted.left) == (MANY - 3, {"it is odd": 1})
    assert state.read_bytes() == before


def test_a_file_that_another_run_has_or_that_is_none_is_refused(state: Path) -> None:
    with StoredBefore(state, URL, "here", is_dry_run=False), pytest.raises(MovingInError, match="locked"):
        StoredBefore(state, URL, "here", is_dry_run=False)
    state.write_bytes(b"a diary of somebody's, which is no database\n" * 100)
    with pytest.raises(MovingInError, match="not a database"):
        StoredBefore(state, URL, "here", is_dry_run=False)
    assert state.read_bytes().startswith(b"a diary")
