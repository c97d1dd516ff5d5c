"""The counts of the topics of a namespace that were closed or deleted: sums of a namespace must not decrease.

A counter that decreases looks like a restart to Prometheus, which would count all that is left once more. A topic that
is opened again counts from 0. Here is one sum for each metric of a namespace, however many topics it had.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from dispatcher.lateness import LatenessHistogram
from postdate.broker.admin.figures import SUBSCRIPTION_COUNTERS, TOPIC_FIGURES, Metric
from postdate.broker.topics.figures import TopicSnapshot
from tracker.stats import TrackerCounters, summed

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class EndedTopics:
    """The sums of one namespace.

    Attributes:
        namespace: `tenant/namespace`.
        totals: By name, the counters of topics and subscriptions.
        lateness: How late messages were.
        index_counters: Of the delayed indexes, None if there was none.
    """

    namespace: str
    totals: Mapping[str, float]
    lateness: LatenessHistogram
    index_counters: TrackerCounters | None


def with_ended(before: EndedTopics | None, topic: TopicSnapshot) -> EndedTopics:
    """Return the sums of a namespace with those of one more topic."""
    totals = {} if before is None else dict(before.totals)
    lateness = LatenessHistogram()
    indexes = [topic.shared_index, topic.index_counters_before]
    if before is not None:
        lateness.add(before.lateness)
        indexes.append(before.index_counters)
    _count(totals, TOPIC_FIGURES, topic)
    _count(totals, SUBSCRIPTION_COUNTERS, topic.deleted_counters)
    if topic.lateness is not None:
        lateness.add(topic.lateness)
    for one in topic.subscriptions:
        _count(totals, SUBSCRIPTION_COUNTERS, one.counters)
        indexes += [one.tracker, one.index_counters_before]
    return EndedTopics(topic.namespace, totals, lateness, summed(*indexes))


def _count(totals: dict[str, float], figures: Sequence[Metric[T]], thing: T) -> None:
    for one in figures:
        if one.has_sum and one.name.endswith("_total"):
            totals[one.name] = totals.get(one.name, 0) + one.value(thing)
