"""Tasks of a bulk job that fail or die: other work is given to Spark in place of the job's own."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from postdate.pipeline.spark.tasks import SparkTasks

Work = Callable[[Any], Any]


def wrap_tasks(monkeypatch: pytest.MonkeyPatch, wrap: Callable[[Work], Work]) -> None:
    """Let the tasks that build snapshots do what `wrap` makes of their work, until the test ends."""
    run = SparkTasks.run

    def run_wrapped(self: SparkTasks, name: str, tasks: Sequence[Any], work: Work, *more: Any) -> list[Any]:
        return run(self, name, tasks, wrap(work) if name == "build" else work, *more)

    monkeypatch.setattr(SparkTasks, "run", run_wrapped)
