"""Makes the calls of a core under test, which come one by one."""

from tracker.core.actions import Answer, Call
from tracker.shell.tracker_calls import TrackerCalls, failure_of


async def answer_to(calls: TrackerCalls, call: Call) -> Answer:
    """Make a call and return its answer, also where it fails."""
    try:
        return await calls.run(call)
    except Exception as error:
        return failure_of(call, error)
