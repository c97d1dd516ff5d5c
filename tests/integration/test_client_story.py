"""The demo's story against a real subprocess, with fewer messages: the main job with a crash in the middle.

Postdate alone for the whole of it. A real Pulsar is asked the part that it can be asked: the same verdict on the same
record without the kill, after which its first deliveries are known to come in log order.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from broker.demo import run_demo
from broker.demo_consumer import RecordingConsumer, new_client
from broker.demo_process import PostdateProcess
from broker.demo_story import ACK_GRACE_MS, Story, StoryConfig, publish
from broker.demo_verdict import Deliveries, Outage, Verdict, judge
from tests.integration.programs.clients import wait_for
from tests.integration.services import Service

SMALL = StoryConfig(
    messages=3_000, keys=60, delay_ms_min=500, delay_ms_max=6_000, hold_ms_max=30, entries_per_ledger=250
)


@pytest.fixture
def story(tmp_path: Path) -> Iterator[Story]:
    """A story of a few seconds, ended in any case."""
    told = Story(SMALL, PostdateProcess(tmp_path, SMALL.settings))
    yield told
    told.close()


def test_the_main_job_survives_a_crash_in_the_middle(story: Story) -> None:
    """Nothing lost, early, out of order or at two consumers; duplicates only of what was unacknowledged."""
    outcome = story.run()

    assert outcome.is_clean, {name: finding for name, finding in outcome.verdict.faults.items() if finding.count}
    assert outcome.verdict.delivered == SMALL.messages
    # The kill found an index that lay in several snapshots, and recovery used them.
    assert outcome.buckets_sealed >= 3
    assert outcome.buckets_recovered >= 1
    assert outcome.reread < outcome.waiting_at_restart
    assert outcome.verdict.lateness_up.p99_ms < 1_000


def test_the_demo_shows_its_verdict_and_leaves_nothing_behind(tmp_path: Path) -> None:
    """Exit code 0, the verdict on the screen, and the folder kept because it was named."""
    config = StoryConfig(messages=600, keys=20, delay_ms_min=300, delay_ms_max=3_000, entries_per_ledger=100)
    with (tmp_path / "screen").open("w") as screen:
        code = run_demo(folder=tmp_path / "demo", config=config, console=Console(file=screen, width=100))

    shown = (tmp_path / "screen").read_text()
    assert code == 0, shown
    for text in ("SIGKILL", "has left", "has joined", "lost", "out of order", "two owners", "Clean"):
        assert text in shown
    assert (tmp_path / "demo" / "log").exists()


def test_the_same_without_a_crash_is_clean_on_either_service(service: Service, topic: str, tmp_path: Path) -> None:
    """Consumers come and go while messages of every key fall due; far enough apart for Pulsar's tick of 100 ms."""
    config = StoryConfig(messages=600, keys=60, delay_ms_min=500, delay_ms_max=4_000, hold_ms_max=30)

    verdict = told_without_a_crash(service, topic, config, tmp_path)

    # Without a tick every pair of messages is in order; within one, a real Pulsar delivers in log order.
    allowed_within_a_tick = {"out of order within a key"} if not isinstance(service, PostdateProcess) else set()
    faults = {name for name, finding in verdict.faults.items() if finding.count}
    assert faults <= allowed_within_a_tick, verdict.faults
    assert verdict.delivered == config.messages


def told_without_a_crash(service: Service, topic: str, config: StoryConfig, folder: Path) -> Verdict:
    """Publish, let a consumer leave at a third and one join at two thirds, and judge the record."""
    seen: set[tuple[int, int]] = set()
    consumers: list[RecordingConsumer] = []

    def join() -> None:
        number = len(consumers)
        client = new_client(service.url, folder / f"client-{number}.log")
        consumers.append(RecordingConsumer(number, client, topic, seen=seen, hold_ms_max=config.hold_ms_max))
        consumers[-1].start()

    for _ in range(3):
        join()
    published = publish(config, new_client(service.url, folder / "producer.log"), topic)
    wait_for(lambda: len(seen) > config.messages // 3)
    consumers[0].leave()
    wait_for(lambda: len(seen) > 2 * config.messages // 3)
    join()
    wait_for(lambda: len(seen) == config.messages)
    for consumer in consumers:
        consumer.leave()
        consumer.join(timeout=30)
        assert consumer.failure is None

    # A kill that never was lies after everything.
    never = Outage(time.time_ns(), time.time_ns())
    columns = [consumer.deliveries for consumer in consumers]
    record = Deliveries(
        **{name: np.concatenate([getattr(one, name) for one in columns]) for name in Deliveries.__slots__}
    )
    return judge(published, record, never, ack_grace_ms=ACK_GRACE_MS)
