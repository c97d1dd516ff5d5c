"""The demo's story against a real subprocess, with fewer messages: the main job with a crash in the middle.

Postdate alone: the part that a real Pulsar runs too is in `test_client_story_without_crash.py`.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from postdate.demo.process import PostdateProcess
from postdate.demo.screen import run_demo
from postdate.demo.story import Story, StoryConfig

SMALL = StoryConfig(
    messages=3_000, keys=60, delay_ms_min=500, delay_ms_max=6_000, hold_ms_max=30, entries_per_ledger=250
)


@pytest.fixture
def story(tmp_path: Path) -> Iterator[Story]:
    """A story of a few seconds, ended in any case."""
    # A busy machine needs more than the usual 5 s from the kill to the first delivery, and order waits no longer.
    told = Story(SMALL, PostdateProcess(tmp_path, {**SMALL.settings, "delayedDeliveryMaxOrderWaitMillis": "60000"}))
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


def test_the_verdict_over_a_real_record_can_fail(tmp_path: Path) -> None:
    """With times that are not strict, messages are early by up to a tick, and the story says so."""
    loose = {"isDelayedDeliveryDeliverAtTimeStrict": "false", "delayedDeliveryTickTimeMillis": "1000"}
    told = Story(SMALL, PostdateProcess(tmp_path, SMALL.settings | loose))
    try:
        outcome = told.run()
    finally:
        told.close()

    assert outcome.verdict.early.count > 0
    assert outcome.verdict.lost.count == 0
    assert not outcome.is_clean
