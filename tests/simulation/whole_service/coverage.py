"""The coverage of a run: events that had an effect, with their sizes, and bounds and portions that were reached.

An event that is drawn can find nothing to do, and a small limit need not be met; so both are counted where they take
effect. `simulate.py --coverage` prints them for many seeds. Verdicts are the oracle's.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final

from dispatcher.core.key_shared import KeySharedAssignor
from dispatcher.core.multiple_consumers import MultipleConsumersCore
from dispatcher.dispatcher import Dispatcher
from tests.simulation.whole_service.clients import SimulatedConsumer
from tracker.stats import BucketOperation, TrackerStats

Met = dict[str, tuple[int, int]]
"""By name: how often, and the most at once."""


class Coverage:
    """Events, bounds and portions that one run met."""

    def __init__(self) -> None:
        self.met: Met = {}

    def note(self, name: str, size: int = 1) -> None:
        """Count something that had an effect on so many."""
        times, most = self.met.get(name, (0, 0))
        self.met[name] = (times + 1, max(most, size))

    def look_at(self, dispatcher: Dispatcher) -> None:
        """Count the bounds that a dispatcher and its tracker are at, after a step."""
        core = dispatcher.core
        if isinstance(core, MultipleConsumersCore):
            self._look(_INTAKE, core)
            self._look(_MANY, core)
            if isinstance(core.assignor, KeySharedAssignor):
                self._look(_KEY_SHARED, core.assignor)
        self._look(_CONSUMERS, dispatcher)
        stats = getattr(dispatcher.tracker, "stats", None)
        if stats is not None:
            self._look(_TRACKER, stats())

    def _look(self, bounds: dict[str, Callable[[Any], int]], at: Any) -> None:
        for name, measure in bounds.items():
            size = measure(at)
            if size:
                self.note(name, size)


_INTAKE: Final[dict[str, Callable[[MultipleConsumersCore], int]]] = {
    "bound: no room to read ahead": lambda core: len(core.replay_queue) if core.budget.room() == 0 else 0,
    "bound: no room for what is due": lambda core: len(core.replay_queue) if core.budget.due_room() == 0 else 0,
    "bound: due entries are held for the order of time": lambda core: len(core.intake.held_due),
    "bound: as many are held as may be": lambda core: (
        len(core.intake.held_due) if len(core.intake.held_due) >= core.config.held_entries_max else 0
    ),
    "portion: more is held than one turn takes in": lambda core: (
        len(core.intake.held_due) if len(core.intake.held_due) > core.config.admit_entries_max else 0
    ),
    "bound: entries of a slot are parked": lambda core: len(core.replay_queue.parked),
    "portion: entries return to their queues": lambda core: len(core.replay_queue.returning),
    "bound: the scan is ahead of what is read": lambda core: int(
        core.plan is not None and core.plan.ranges[-1].scanned_to > core.plan.next_immediate
    ),
    "recovery: a ledger waits for its index": lambda core: int(core.plan is not None and core.plan.has_recovering),
    "recovery: taken before the scan came by": lambda core: len(core.plan.taken_early) if core.plan is not None else 0,
}

_MANY: Final[dict[str, Callable[[MultipleConsumersCore], int]]] = {
    "bound: the subscription holds too many": lambda core: core.budget.unacked if core.budget.is_blocked else 0,
    "bound: a consumer holds too many": lambda core: sum(one.is_blocked for one in core.consumers.values()),
    "batches of which a part is acknowledged": lambda core: len(core.ack_sets),
}

_KEY_SHARED: Final[dict[str, Callable[[KeySharedAssignor], int]]] = {
    "fence: keys wait for another consumer": lambda keys: int(keys.fence.is_active and bool(keys.replay_queue.heaps)),
    "fence: drained keys wait for the interval": lambda keys: len(keys.unblocked),
    "portion: consumers have their turn later": lambda keys: len(keys.to_serve),
}

_CONSUMERS: Final[dict[str, Callable[[Dispatcher], int]]] = {
    "bound: entries wait and no consumer has permits": lambda dispatcher: int(
        bool(dispatcher.core.consumers)
        and all(one.permits <= 0 for one in dispatcher.core.consumers.values())
        and isinstance(dispatcher.core, MultipleConsumersCore)
        and len(dispatcher.core.replay_queue) > 0
    ),
    "bound: permits below zero after a batch": lambda dispatcher: sum(
        one.permits < 0 for one in dispatcher.core.consumers.values()
    ),
    "outbox: entries are given and not sent": lambda dispatcher: sum(
        one.unsent_entries for one in dispatcher.stats().consumers
    ),
    "outbox: others of the connection are read for": lambda dispatcher: sum(
        isinstance(one, SimulatedConsumer) and one.own_link.waits_for_reads for one in dispatcher.consumers
    ),
}

_TRACKER: Final[dict[str, Callable[[TrackerStats], int]]] = {
    "tracker: messages": lambda stats: stats.message_count,
    "tracker: several buckets": lambda stats: stats.bucket_total if stats.bucket_total > 2 else 0,
    "tracker: merged": lambda stats: stats.operations[BucketOperation.MERGE].succeed,
    "tracker: a merge failed": lambda stats: stats.operations[BucketOperation.MERGE].failed,
    "tracker: a create failed": lambda stats: stats.operations[BucketOperation.CREATE].failed,
    "tracker: a load failed": lambda stats: stats.operations[BucketOperation.LOAD].failed,
    "tracker: recovered": lambda stats: stats.buckets_recovered,
    "tracker: a bucket was lost": lambda stats: stats.buckets_lost,
    "tracker: the storage is out": lambda stats: len(stats.failing),
}

BOUNDS: Final = (*_INTAKE, *_MANY, *_KEY_SHARED, *_CONSUMERS, *_TRACKER)


def table(runs: Iterable[Met], names: Iterable[str]) -> str:
    """Return a table in Markdown of what runs met; what none met has zeros."""
    found = list(runs)
    every = sorted({*names, *(name for met in found for name in met)})
    lines = [f"| of {len(found)} seeds | seeds | times | most at once |", "|---|---:|---:|---:|"]
    for name in every:
        each = [met[name] for met in found if name in met]
        lines.append(
            f"| {name} | {len(each)} | {sum(one[0] for one in each)} | {max((one[1] for one in each), default=0)} |"
        )
    return "\n".join(lines)
