"""Threads on a loop's virtual time: one runs at a time, and where it waits the loop goes on.

    loop ──resume──► thread runs; the loop stands still
    loop ◄──parks─── it waits for a time, an event, a lock or a thread

So code that blocks is interleaved with the loop and with other such code, at its waits alone, and the same in each run.
`SteppedThreading` stands for the module `threading` in the code that is run so.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from types import TracebackType
from typing import Any

from tests.helpers.fakes.virtual_time import SimulationLoop


class EndedError(BaseException):
    """The process of this thread is dead; raised where it waits, so that the thread ends."""


class SteppedThread:
    """A thread that a loop resumes.

    Args:
        threads: All threads of the process.
        work: What it does.
    """

    def __init__(self, threads: "SteppedThreads", work: Callable[[], object]) -> None:
        self.threads = threads
        self.ended = SteppedEvent()
        self._work = work
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, daemon=True)

    def begin(self) -> None:
        """Run it until it waits for the first time; called by the loop."""
        self._thread.start()
        self._back.acquire()

    def resume(self) -> None:
        """Run it until it waits again; called by the loop."""
        self._go.release()
        self._back.acquire()

    def park(self) -> None:
        """Let the loop go on until something resumes this thread; called in it."""
        if not self.threads.is_ended:
            self._back.release()
            self._go.acquire()
        if self.threads.is_ended:
            raise EndedError

    def _run(self) -> None:
        _here.thread = self
        self.threads.parked.append(self)
        try:
            self._work()
        except EndedError:
            pass
        finally:
            self.threads.parked.remove(self)
            self.ended.set()
            self._back.release()


_here = threading.local()


def current() -> SteppedThread:
    """Return the thread that runs this."""
    found: SteppedThread = _here.thread
    return found


class SteppedThreads:
    """The threads of one process, on its loop."""

    def __init__(self, loop: SimulationLoop) -> None:
        self.loop = loop
        self.is_ended = False
        self.parked: list[SteppedThread] = []

    def call_later(self, seconds: float, wake: Callable[[], None]) -> asyncio.TimerHandle:
        """Set a timer that is no timer of the loop's own: those are counted."""
        return asyncio.SelectorEventLoop.call_at(self.loop, self.loop.time() + seconds, wake)

    def end(self) -> None:
        """Kill the process: each thread ends where it waits."""
        self.is_ended = True
        for thread in list(self.parked):
            thread.resume()


def pause(seconds: float) -> None:
    """Let time pass for the thread that calls this.

    Raises:
        EndedError: Its process is dead.
    """
    here = current()
    here.threads.call_later(seconds, _wake_once(here))
    here.park()


def _wake_once(thread: SteppedThread) -> Callable[[], None]:
    def wake() -> None:
        if not thread.threads.is_ended:
            thread.resume()

    return wake


class SteppedEvent:
    """A `threading.Event`."""

    def __init__(self) -> None:
        self._is_set = False
        self._waiting: list[SteppedThread] = []

    def is_set(self) -> bool:
        return self._is_set

    def clear(self) -> None:
        self._is_set = False

    def set(self) -> None:
        self._is_set = True
        for thread in self._waiting:
            if not thread.threads.is_ended:
                thread.threads.loop.call_soon(self._wake, thread)

    def wait(self, timeout: float | None = None) -> bool:
        if self._is_set:
            return True
        here = current()
        self._waiting.append(here)
        timer = None if timeout is None else here.threads.call_later(timeout, lambda: self._wake(here))
        here.park()
        if timer is not None:
            timer.cancel()
        return self._is_set

    def _wake(self, thread: SteppedThread) -> None:
        # Once: it may be told and run out of time in the same moment.
        if thread in self._waiting and not thread.threads.is_ended:
            self._waiting.remove(thread)
            thread.resume()


class SteppedLock:
    """A `threading.Lock` or `RLock`."""

    def __init__(self) -> None:
        self._owner: SteppedThread | None = None
        self._depth = 0
        self._is_free = SteppedEvent()

    def __enter__(self) -> bool:
        here = current()
        while self._owner not in (None, here):
            self._is_free.clear()
            self._is_free.wait()
        self._owner = here
        self._depth += 1
        return True

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._owner = None
            self._is_free.set()


class _Thread:
    """A `threading.Thread`, of the process that starts it."""

    def __init__(self, *, target: Callable[[], object], name: str | None = None, daemon: bool = False) -> None:
        del name, daemon
        self._target = target
        self._thread: SteppedThread | None = None
        self.ident: int | None = None

    def start(self) -> None:
        threads = current().threads
        self._thread = SteppedThread(threads, self._target)
        self.ident = id(self)
        threads.loop.call_soon(self._begin, self._thread)

    def _begin(self, thread: SteppedThread) -> None:
        if not thread.threads.is_ended:
            thread.begin()

    def join(self) -> None:
        assert self._thread is not None
        self._thread.ended.wait()


class SteppedThreading:
    """Stands for the module `threading`."""

    Event = SteppedEvent
    Lock = SteppedLock
    RLock = SteppedLock
    Thread = _Thread


class SteppedExecutor(Executor):
    """Runs calls in threads of a process, after a while; with one worker one after the other.

    Args:
        threads: Gives the process.
        workers: With one, calls run in the order in which they were submitted.
        latency_s: Says how long a call waits for its turn.
        dead: Makes the error of calls that the end of the process cuts off.
    """

    def __init__(
        self,
        threads: Callable[[], SteppedThreads],
        workers: int,
        latency_s: Callable[[], float],
        dead: Callable[[], Exception],
    ) -> None:
        self._threads = threads
        self._is_in_order = workers == 1
        self._latency_s = latency_s
        self._dead = dead
        self._queue: deque[SteppedThread] = deque()
        self._is_busy = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        future: Future[Any] = Future()

        def work() -> None:
            try:
                if future.set_running_or_notify_cancel():
                    try:
                        result = fn(*args, **kwargs)
                    except EndedError:
                        future.set_exception(self._dead())
                    # As in a thread pool, the future takes every error that is raised.
                    except BaseException as error:
                        future.set_exception(error)
                    else:
                        future.set_result(result)
            finally:
                self._is_busy = False
                self._next()

        thread = SteppedThread(self._threads(), work)
        if self._is_in_order:
            self._queue.append(thread)
            self._next()
        else:
            self._threads().loop.call_later(self._latency_s(), thread.begin)
        return future

    def _next(self) -> None:
        if self._queue and not self._is_busy and not self._threads().loop.is_closed():
            self._is_busy = True
            self._threads().loop.call_later(self._latency_s(), self._queue.popleft().begin)


class InTurn(Executor):
    """Runs each call at once, in the thread that submits it."""

    def __init__(self, max_workers: int | None = None, thread_name_prefix: str = "") -> None:
        del max_workers, thread_name_prefix

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        # As in a thread pool, the future takes every error but the end of the process.
        except Exception as error:
            future.set_exception(error)
        return future
