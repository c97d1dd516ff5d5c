"""The metrics of a whole service as one text."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from postdate.broker.admin.figures import StoreSnapshot
from postdate.broker.admin.metrics import MetricsPage
from postdate.broker.event_loop import LoopTurns
from postdate.broker.topics.figures import TopicSnapshot


@dataclass(frozen=True, slots=True)
class ServiceSnapshot:
    """The whole service at one moment."""

    cluster: str
    connection_count: int
    topics: Sequence[TopicSnapshot] = ()
    is_by_topic: bool = True
    is_by_consumer: bool = False
    turns: LoopTurns | None = None
    store: StoreSnapshot | None = None


def metrics_text(snapshot: ServiceSnapshot) -> bytes:
    """Return the metrics of a moment, which the service writes in slices."""
    page = MetricsPage(snapshot.cluster, is_by_topic=snapshot.is_by_topic, is_by_consumer=snapshot.is_by_consumer)
    for topic in snapshot.topics:
        page.add(topic)
    chunks = page.chunks(
        connection_count=snapshot.connection_count,
        topic_counts=Counter(topic.namespace for topic in snapshot.topics if topic.part != "subscriptions"),
        turns=snapshot.turns,
        store=snapshot.store,
    )
    return b"".join(chunks)
