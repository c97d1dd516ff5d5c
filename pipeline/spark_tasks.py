"""Run planned tasks on Spark, one to a partition, and tell how far they are.

Each task travels with its own partition, not with the closure, so a plan of a hundred thousand tasks costs each of them
nothing. Spark retries what fails and may run a task twice; what comes back is of one attempt.
"""

from collections.abc import Callable, Sequence
from threading import Event, Thread
from typing import TypeVar
from uuid import uuid4

from pyspark import SparkContext, TaskContext
from pyspark.sql import SparkSession

Task = TypeVar("Task")
Result = TypeVar("Result")

OnStage = Callable[[str, int], None]
"""Told when a stage begins: its name, and how many steps it has."""
OnStep = Callable[[int], None]
"""Told how many steps are done since it was told last."""

_POLL_SECONDS = 0.2


class SparkTasks:
    """A session, and who wants to know about the progress of its jobs."""

    def __init__(self, spark: SparkSession, on_stage: OnStage, on_step: OnStep) -> None:
        self._context: SparkContext = spark.sparkContext
        self._on_stage = on_stage
        self._on_step = on_step

    @property
    def cores(self) -> int:
        """How many tasks run at a time."""
        return int(self._context.defaultParallelism)

    def run(self, name: str, tasks: Sequence[Task], work: Callable[[Task], Result]) -> list[Result]:
        """Return what each task gave, in order; begins them in that order."""
        self._on_stage(name, len(tasks))
        if not tasks:
            return []
        group = uuid4().hex
        self._context.setJobGroup(group, f"postdate {name}", interruptOnCancel=True)
        is_over = Event()
        watch = Thread(target=self._watch, args=(group, len(tasks), is_over), daemon=True)
        watch.start()
        try:
            results: list[Result] = self._context.parallelize(tasks, len(tasks)).map(work).collect()
        finally:
            is_over.set()
            watch.join()
        return results

    def _watch(self, group: str, total: int, is_over: Event) -> None:
        told = 0
        tracker = self._context.statusTracker()
        while not is_over.wait(_POLL_SECONDS):
            done = 0
            for job_id in tracker.getJobIdsForGroup(group):
                job = tracker.getJobInfo(job_id)
                stages = [tracker.getStageInfo(stage_id) for stage_id in (job.stageIds if job else ())]
                done += sum(stage.numCompletedTasks for stage in stages if stage)
            self._on_step(done - told)
            told = done
        self._on_step(total - told)


def attempt_name() -> str:
    """Name this attempt of this task; no other attempt of the job has the name."""
    context = TaskContext.get()
    return "local" if context is None else f"{context.partitionId()}-{context.taskAttemptId()}"
