"""The supervisor with processes that are none: starts, ends, pauses and the stop."""

import asyncio

import pytest

from postdate.broker.errors import ServiceStartError
from postdate.broker.server.supervisor import Supervisor
from tests.helpers.event_loops import on_a_loop


class _Process:
    """A worker whose life the test leads."""

    pid = 1

    def __init__(self, *, obeys: bool = True, exit_code: int = 0) -> None:
        self._obeys = obeys
        self._exit_code = exit_code
        self._ready: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.signals: list[str] = []

    def become_ready(self) -> None:
        self._ready.set_result(True)

    def end(self, exit_code: int) -> None:
        if not self._ready.done():
            self._ready.set_result(False)
        if not self._ended.done():
            self._ended.set_result(exit_code)

    async def wait_ready(self) -> bool:
        return await asyncio.shield(self._ready)

    async def wait(self) -> int:
        return await asyncio.shield(self._ended)

    def terminate(self) -> None:
        self.signals.append("terminate")
        if self._obeys:
            self.end(self._exit_code)

    def kill(self) -> None:
        self.signals.append("kill")
        self.end(-9)


class _Workers:
    """All processes that a supervisor has started, by worker."""

    def __init__(self, count: int) -> None:
        self.started: list[list[_Process]] = [[] for _ in range(count)]
        self.obeys = True
        self.exit_code = 0
        self.no_process_for = 0
        self.start_error: Exception = BlockingIOError("Resource temporarily unavailable")
        self.has_spare = False
        self.supervisor = Supervisor([f"worker {number}" for number in range(count)], self)

    async def start(self, number: int) -> _Process:
        if self.no_process_for:
            self.no_process_for -= 1
            raise self.start_error
        self.started[number].append(_Process(obeys=self.obeys, exit_code=self.exit_code))
        return self.started[number][-1]

    async def prepare(self) -> None:
        self.has_spare = True

    async def close(self) -> None:
        self.has_spare = False

    async def opened(self) -> None:
        starting = asyncio.create_task(self.supervisor.start())
        await _turns()
        for lives in self.started:
            lives[-1].become_ready()
        await starting


async def _turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@on_a_loop
async def test_it_is_started_when_all_are_ready() -> None:
    workers = _Workers(2)
    starting = asyncio.create_task(workers.supervisor.start())
    await _turns()
    workers.started[1][0].become_ready()
    await _turns()

    assert not starting.done()
    assert workers.supervisor.problems == ["worker 0 is starting"]
    workers.started[0][0].become_ready()
    await starting
    assert workers.supervisor.problems == []
    assert await workers.supervisor.stop(1) == 0


@on_a_loop
async def test_one_that_is_killed_begins_again_at_once_and_the_others_go_on() -> None:
    workers = _Workers(3)
    await workers.opened()
    workers.started[1][0].end(-9)
    await _turns()

    assert [len(lives) for lives in workers.started] == [1, 2, 1]
    assert workers.supervisor.unready is None
    assert [problem.split(",")[0] for problem in workers.supervisor.problems] == ["worker 1 is starting again"]
    workers.started[1][1].become_ready()
    await _turns()
    assert workers.supervisor.problems == []
    await workers.supervisor.stop(1)


@on_a_loop
async def test_one_that_could_not_store_anything_begins_again() -> None:
    workers = _Workers(2)
    await workers.opened()
    workers.started[0][0].end(1)
    await _turns()

    assert len(workers.started[0]) == 2
    workers.started[0][1].become_ready()
    await _turns()
    assert await workers.supervisor.stop(1) == 0


@on_a_loop
async def test_one_that_fails_at_the_start_leaves_the_others_to_serve() -> None:
    """As with a damaged bundle: a second try at once, then a pause, and the problem is told."""
    workers = _Workers(2)
    starting = asyncio.create_task(workers.supervisor.start())
    await _turns()
    workers.started[0][0].become_ready()
    workers.started[1][0].end(2)
    await starting
    await _turns()
    workers.started[1][1].end(2)
    await _turns()

    assert len(workers.started[1]) == 2
    assert workers.supervisor.unready is None
    assert workers.supervisor.problems == ["worker 1 is starting again, as it ended with exit code 2; the log says why"]
    await asyncio.wait_for(workers.supervisor.stop(10), 8)


@pytest.mark.parametrize("error", [BlockingIOError("Resource temporarily unavailable"), RuntimeError("whatever")])
@on_a_loop
async def test_one_that_no_process_can_be_started_for_is_tried_again(error: Exception) -> None:
    workers = _Workers(1)
    workers.start_error = error
    await workers.opened()
    workers.no_process_for = 1
    workers.started[0][0].end(-9)
    await _turns()
    assert workers.supervisor.unready == "No worker is ready"
    await asyncio.sleep(0.6)
    workers.started[0][1].become_ready()
    await _turns()

    assert workers.supervisor.problems == []
    await workers.supervisor.stop(1)


@on_a_loop
async def test_a_spare_is_made_when_all_are_well_and_ends_with_the_stop() -> None:
    """One that is made while a worker opens would take its processor."""
    workers = _Workers(2)
    starting = asyncio.create_task(workers.supervisor.start())
    await _turns()
    await workers.supervisor.prepare()
    assert not workers.has_spare
    for lives in workers.started:
        lives[0].become_ready()
    await starting
    await workers.supervisor.prepare()
    assert workers.has_spare
    await workers.supervisor.stop(1)
    assert not workers.has_spare
    await workers.supervisor.prepare()
    assert not workers.has_spare


@on_a_loop
async def test_it_does_not_start_when_no_worker_does() -> None:
    workers = _Workers(2)
    starting = asyncio.create_task(workers.supervisor.start())
    await _turns()
    for lives in workers.started:
        lives[0].end(2)

    with pytest.raises(ServiceStartError, match="no worker could be started"):
        await starting
    await workers.supervisor.stop(1)


@on_a_loop
async def test_a_stop_tells_all_and_starts_none_again() -> None:
    workers = _Workers(2)
    await workers.opened()
    assert await workers.supervisor.stop(1) == 0
    await _turns()

    assert [[one.signals for one in lives] for lives in workers.started] == [[["terminate"]], [["terminate"]]]


@on_a_loop
async def test_a_stop_during_the_start_ends_what_is_opening() -> None:
    workers = _Workers(2)
    starting = asyncio.create_task(workers.supervisor.start())
    await _turns()
    await workers.supervisor.stop(1)
    await starting

    assert [[one.signals for one in lives] for lives in workers.started] == [[["terminate"]], [["terminate"]]]


@on_a_loop
async def test_a_stop_that_could_not_store_what_was_left_says_so() -> None:
    workers = _Workers(2)
    workers.exit_code = 1
    await workers.opened()
    assert await workers.supervisor.stop(1) == 1


@on_a_loop
async def test_one_that_does_not_stop_in_time_is_killed() -> None:
    workers = _Workers(1)
    workers.obeys = False
    await workers.opened()
    assert await workers.supervisor.stop(0.01) == 0
    assert workers.started[0][0].signals == ["terminate", "kill"]
