"""Runs the actions of a core under test, which come one by one."""

from tracker.core.actions import Action, Event
from tracker.shell.snapshot_work import SnapshotWork


async def answer_to(work: SnapshotWork, action: Action) -> Event:
    """Run an action and return its answer; raise what it raised."""
    (answer,) = await work.run([action])
    if isinstance(answer, Exception):
        raise answer
    return answer
