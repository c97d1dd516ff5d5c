"""The demo's story without its crash, on either service, under the demo's verdict.

Three Key_Shared consumers that hold each message for a while, one leaves and one joins, and the record of every
delivery is judged. A real Pulsar can be asked this much of the story.
"""

import time
from dataclasses import fields
from pathlib import Path

import numpy as np

from postdate.demo.consumer import RecordingConsumer, new_client
from postdate.demo.story import ACK_GRACE_MS, StoryConfig, publish
from postdate.demo.verdict import Deliveries, Outage, Verdict, judge
from tests.helpers.services.programs.clients import wait_for
from tests.helpers.services.services import RunningService

CONFIG = StoryConfig(messages=600, keys=60, delay_ms_min=500, delay_ms_max=4_000, hold_ms_max=30)


def test_consumers_come_and_go_without_a_fault(
    service: RunningService, topic: str, tmp_path: Path, is_real_pulsar: bool
) -> None:
    """Nothing lost, early, twice, out of order or at two consumers at once."""
    verdict = _told_without_a_crash(service, topic, tmp_path)

    # A real Pulsar delivers messages of one tick in log order, which the verdict does not forgive.
    forgiven = {"out of order within a key"} if is_real_pulsar else set()
    faults = {name: finding for name, finding in verdict.faults.items() if finding.count and name not in forgiven}
    assert faults == {}
    assert verdict.delivered == CONFIG.messages
    assert verdict.duplicates_at_kill == 0


def _told_without_a_crash(service: RunningService, topic: str, folder: Path) -> Verdict:
    """Publish, let a consumer leave at a third and one join at two thirds, and judge the record."""
    seen: set[tuple[int, int]] = set()
    consumers: list[RecordingConsumer] = []

    def join() -> None:
        number = len(consumers)
        client = new_client(service.url, folder / f"client-{number}.log")
        consumers.append(RecordingConsumer(number, client, topic, seen=seen, hold_ms_max=CONFIG.hold_ms_max))
        consumers[-1].start()

    for _ in range(CONFIG.consumers):
        join()
    published = publish(CONFIG, new_client(service.url, folder / "producer.log"), topic)
    wait_for(lambda: len(seen) > CONFIG.messages // 3)
    consumers[0].leave()
    wait_for(lambda: len(seen) > 2 * CONFIG.messages // 3)
    join()
    wait_for(lambda: len(seen) == CONFIG.messages)
    for consumer in consumers:
        consumer.leave()
        consumer.join(timeout=30)
        assert consumer.failure is None

    # The outage lies after all messages, as this story has no kill.
    never = Outage(time.time_ns(), time.time_ns())
    parts = [consumer.deliveries for consumer in consumers]
    columns = {
        field.name: np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(Deliveries)
    }
    return judge(published, Deliveries(**columns), never, ack_grace_ms=ACK_GRACE_MS)
