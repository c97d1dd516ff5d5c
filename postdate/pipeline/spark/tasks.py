"""Run planned tasks on Spark, one to a partition, and tell how far they are.

Each task travels with its own partition, not with the closure, so a plan of a hundred thousand tasks costs each of them
nothing. Spark retries failed tasks and may run a task twice; a result is of one attempt.
"""

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Sequence
from threading import Event, Thread
from typing import Any, TypeVar
from uuid import uuid4

from pyspark import SparkContext, TaskContext
from pyspark.accumulators import Accumulator, AccumulatorParam
from pyspark.sql import SparkSession

Task = TypeVar("Task")
Result = TypeVar("Result")


_POLL_SECONDS = 0.1


class SparkTasks:
    """A session as something that runs tasks."""

    def __init__(self, spark: SparkSession) -> None:
        self._context: SparkContext = spark.sparkContext

    @property
    def cores(self) -> int:
        """How many tasks run at a time."""
        return int(self._context.defaultParallelism)

    def run(
        self,
        name: str,
        tasks: Sequence[Task],
        work: Callable[[Task], Result],
        on_result: Callable[[Result], None] = lambda _result: None,
    ) -> list[Result]:
        """Return the results of the tasks, in order; begins them in that order.

        Args:
            name: Their name, for progress and Spark's pages.
            tasks: Their inputs.
            work: The function that runs on each input.
            on_result: Told of each result once, soon after its task has ended; from a thread.
        """
        if not tasks:
            return []
        group = uuid4().hex
        self._context.setJobGroup(group, f"postdate {name}", interruptOnCancel=True)
        # A task's additions count once, when it has succeeded, however often it ran.
        ended = self._context.accumulator([], _Appending())
        is_over = Event()
        watch = Thread(target=self._watch, args=(ended, on_result, is_over), daemon=True)
        watch.start()

        def run_one(task: Task) -> Result:
            _spare_imports()
            result = work(task)
            ended.add([result])
            return result

        try:
            return list(self._context.parallelize(tasks, len(tasks)).map(run_one).collect())
        finally:
            is_over.set()
            watch.join()

    @staticmethod
    def _watch(ended: Accumulator[list[Any]], on_result: Callable[[Any], None], is_over: Event) -> None:
        told = 0
        while True:
            was_over = is_over.wait(_POLL_SECONDS)
            for result in ended.value[told:]:
                on_result(result)
                told += 1
            if was_over:
                return

    def cancel(self) -> None:
        """End what runs."""
        self._context.cancelAllJobs()


async def as_they_come(
    jobs: SparkTasks, tasks: Sequence[Task], work: Callable[[Task], list[Result]]
) -> AsyncIterator[Result]:
    """Run tasks that give several things, and give each when its task has ended, so that two things go on at once.

    Raises:
        Exception: The error that made Spark give up.
    """
    loop = asyncio.get_running_loop()
    ended: asyncio.Queue[list[Result] | None] = asyncio.Queue()

    def on_result(results: list[Result]) -> None:
        loop.call_soon_threadsafe(ended.put_nowait, results)

    running = asyncio.create_task(asyncio.to_thread(jobs.run, "build", tasks, work, on_result))
    running.add_done_callback(lambda _running: ended.put_nowait(None))
    try:
        while (results := await ended.get()) is not None:
            for result in results:
                yield result
        await running
    finally:
        if not running.done():
            jobs.cancel()


def count_tasks(
    context: SparkContext, name: str, steps: int, on_step: Callable[[int], None], job: Callable[[], Result]
) -> Result:
    """Return what a query of Spark's own planning gives, and tell how many of its tasks have ended since last told.

    Args:
        context: Of the query's session.
        name: The stage, for progress and Spark's pages.
        steps: How many tasks are foreseen; no more than these are told, and in the end all.
        on_step: Called with the number of tasks that have ended since the last call; from a thread.
        job: The query.
    """
    group = uuid4().hex
    context.setJobGroup(group, f"postdate {name}", interruptOnCancel=True)
    is_over = Event()
    watch = Thread(target=_count_ended, args=(context, group, steps, on_step, is_over), daemon=True)
    watch.start()
    try:
        return job()
    finally:
        is_over.set()
        watch.join()


def _count_ended(context: SparkContext, group: str, steps: int, on_step: Callable[[int], None], is_over: Event) -> None:
    told = 0
    tracker = context.statusTracker()
    while not is_over.wait(_POLL_SECONDS):
        jobs = [tracker.getJobInfo(job_id) for job_id in tracker.getJobIdsForGroup(group)]
        stages = [tracker.getStageInfo(stage_id) for job in jobs if job for stage_id in job.stageIds]
        ended = min(steps, sum(stage.numCompletedTasks for stage in stages if stage))
        on_step(max(0, ended - told))
        told = max(told, ended)
    on_step(steps - told)


class _Appending(AccumulatorParam[list[Any]]):
    """Collects what tasks add."""

    def zero(self, value: list[Any]) -> list[Any]:  # noqa: ARG002 - Spark's signature
        return []

    def addInPlace(self, value1: list[Any], value2: list[Any]) -> list[Any]:  # noqa: N802 - Spark's name
        value1 += value2
        return value1


def _spare_imports() -> None:
    """Let the collector pass over what this worker has imported: Spark has it walk over everything after each task.

    That took 20 ms of processor time each; once is enough.
    """
    if TaskContext.get() is not None and not gc.get_freeze_count():
        gc.freeze()


def attempt_name() -> str:
    """Name this attempt of this task; no other attempt of the job has the name."""
    context = TaskContext.get()
    return "local" if context is None else f"{context.partitionId()}-{context.taskAttemptId()}"
