"""The examples in the docstrings of `Scheduler` and `AsyncScheduler`, run against a real service."""

import asyncio
import doctest
from datetime import timedelta

import pytest

from postdate.scheduling import async_scheduler as async_module
from postdate.scheduling import scheduler as module
from postdate.scheduling.async_scheduler import AsyncScheduler
from postdate.scheduling.scheduler import Scheduler
from postdate.scheduling.values import EVERYTHING, Matching
from tests.helpers.services.services import RunningService


@pytest.mark.parametrize("name", ["Scheduler", "AsyncScheduler"])
def test_every_example_is_true(name: str, scheduler: Scheduler, postdate_service: RunningService, topic: str) -> None:
    """Each public method has one; those of `AsyncScheduler` are in one example."""
    steered = AsyncScheduler(postdate_service.url, postdate_service.web_url, topic)
    known = {
        "scheduler": scheduler,
        "async_scheduler": steered,
        "asyncio": asyncio,
        "timedelta": timedelta,
        "Matching": Matching,
        "EVERYTHING": EVERYTHING,
    }
    scheduler.schedule(b"one", after=timedelta(hours=1))
    where = module if name == "Scheduler" else async_module
    examples = doctest.DocTestFinder().find(getattr(where, name), name, globs=known)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)

    failed = [one.name for one in examples if runner.run(one).failed]

    asyncio.run(steered.close())
    assert failed == []
    sources = "".join(example.source for one in examples for example in one.examples)
    methods = ("schedule", "cancel", "reschedule", "deliver_now", "upcoming", "count")
    assert [method for method in methods if f"scheduler.{method}(" not in sources] == []
