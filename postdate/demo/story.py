"""The run of the demo: the main job with a crash in the middle, recorded.

    publish everything ── 1/4 delivered: a consumer leaves ── 1/2: SIGKILL, down, start ── 3/4: one joins ── the end

The demo runs it with 20,000 messages, the integration tests with fewer. This module drives the service and its clients
and measures times; `postdate.demo.verdict` judges the record, `postdate.demo.screen` shows it.
"""

import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Final
from uuid import uuid4

import numpy as np
import pulsar
from prometheus_client.parser import text_string_to_metric_families

from managed_ledger.positions.value_types import Int64Array
from postdate.demo.consumer import KEY_PREFIX, SUBSCRIPTION, RecordingConsumer, new_client
from postdate.demo.process import PostdateProcess, wait_until
from postdate.demo.verdict import Deliveries, Outage, PublishedMessages, Verdict, judge

ACK_GRACE_MS: Final = 2_000
"""An acknowledgement this young at the kill may be lost: the client gathers them for up to 100 ms, the service journals
them within 5 ms more, and each thread waits for its turn: 442 ms in all at nine processes on two cores. A fault that
loses acknowledgements for good loses older ones, too."""

RECORD_NAME: Final = "deliveries.npz"
"""In the service's folder: the columns of `Deliveries` in its order, and when it was killed, started and ready."""

DOWN_S: Final = 0.5
"""How long the service stays down at least. It is longer than consumers need for the messages in their clients, so
that a delivery after the restart is one of the second life."""

_LATE_S_MAX: Final = 15.0
"""How long after the last delivery time the run waits for messages before it counts them as lost."""

_QUIET_S: Final = 0.5
"""How long after the last message the run waits for duplicates."""

_POLL_S: Final = 0.02


class StoryError(RuntimeError):
    """The run could not be finished; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoryConfig:
    """The numbers of a run.

    Attributes:
        messages: The number of published messages.
        keys: The number of keys.
        delay_ms_min: The shortest delay.
        delay_ms_max: The longest.
        consumers: The number of consumers at first.
        hold_ms_max: The longest time between a message's arrival at a consumer and its acknowledgement.
        entries_per_ledger: The size of a ledger. A bucket of the index is sealed with each, so that the kill finds
            several snapshots.
        seed: The seed of keys and delays.
    """

    messages: int = 20_000
    keys: int = 500
    delay_ms_min: int = 1_000
    delay_ms_max: int = 20_000
    consumers: int = 3
    hold_ms_max: int = 50
    entries_per_ledger: int = 2_000
    seed: int = 195

    @property
    def settings(self) -> dict[str, str]:
        """The service's settings, those of broker.conf."""
        return {
            "managedLedgerMaxEntriesPerLedger": str(self.entries_per_ledger),
            "delayedDeliveryMinIndexCountPerBucket": str(self.entries_per_ledger),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class StoryOutcome:
    """The result of a run.

    Attributes:
        verdict: The judgement of the record.
        backlog: Messages that were still not acknowledged at the end, by the service's own count.
        buckets_sealed: Snapshots that had been written before the kill.
        buckets_recovered: Snapshots that recovery found and used.
        waiting_at_restart: Messages that were not acknowledged when the service was back.
        reread: The number of these that had to be read again from the log.
        down_ms: From the kill until the service was ready again.
        first_delivery_ms: From the start of the second process to the first delivery.
        all_back_ms: From there until every consumer had had a delivery.
    """

    verdict: Verdict
    backlog: int
    buckets_sealed: int
    buckets_recovered: int
    waiting_at_restart: int
    reread: int
    down_ms: float
    first_delivery_ms: float
    all_back_ms: float

    @property
    def from_snapshots(self) -> int:
        """The number of waiting messages that came from snapshots."""
        return self.waiting_at_restart - self.reread

    @property
    def is_clean(self) -> bool:
        """Whether the run has no fault."""
        return self.verdict.is_clean and self.backlog == 0


Tell = Callable[[str], None]
"""Receives one sentence about an event."""

ShowProgress = Callable[[int, str], None]
"""Receives the number of delivered messages, and the present stage."""


class Story:
    """One run; `close` it in every case.

    Args:
        config: The numbers of the run.
        process: The service, not started. Its settings must be `config.settings`.
        tell: Called for each event.
        show_progress: Called several times a second.
    """

    def __init__(
        self,
        config: StoryConfig,
        process: PostdateProcess,
        *,
        tell: Tell = lambda _: None,
        show_progress: ShowProgress = lambda *_: None,
    ) -> None:
        self._config = config
        self._process = process
        self._tell = tell
        self._show_progress = show_progress
        self._topic = f"persistent://public/default/demo-{uuid4().hex[:8]}"
        self._consumers: list[RecordingConsumer] = []
        self._seen: set[tuple[int, int]] = set()

    def run(self) -> StoryOutcome:
        """Run it from beginning to end.

        Raises:
            ServiceStartError: The service did not start.
            StoryError: The service or a consumer ended when it should not.
        """
        self._start()
        published = self._publish()
        last_due_s = float(published.deliver_at_ms.max()) / 1000
        quarter = len(published) // 4
        self._wait_for(quarter, last_due_s, "3 consumers")
        self._leave()
        self._wait_for(2 * quarter, last_due_s, "2 consumers")
        buckets_sealed = self._operations("create")
        killed_ns, restarted_ns, ready_ns = self._kill_and_restart()
        waiting = self._found_at_restart(last_due_s)
        self._wait_for(3 * quarter, last_due_s, "2 consumers")
        self._add_consumer()
        self._tell(f"consumer {len(self._consumers)} has joined")
        self._wait_for(len(published), last_due_s, "3 consumers")
        self._listen_for_duplicates()
        deliveries = self._finish()
        # The record of the run, for a look afterwards.
        times = np.array([killed_ns, restarted_ns, ready_ns])
        rows = np.column_stack(list(_columns(deliveries).values()))
        np.savez(self._process.folder / RECORD_NAME, times_ns=times, deliveries=rows)
        verdict = judge(published, deliveries, Outage(killed_ns, restarted_ns), ack_grace_ms=ACK_GRACE_MS)
        return StoryOutcome(
            verdict=verdict,
            backlog=self._backlog_at_end(),
            buckets_sealed=buckets_sealed,
            buckets_recovered=int(self._metric("postdate_delayed_buckets_recovered_total") or 0),
            waiting_at_restart=waiting,
            reread=int(self._metric("postdate_delayed_reread_at_recovery_total") or 0),
            down_ms=(ready_ns - killed_ns) / 1e6,
            first_delivery_ms=(verdict.first_delivery_ns - restarted_ns) / 1e6,
            all_back_ms=(verdict.all_back_ns - verdict.first_delivery_ns) / 1e6,
        )

    def close(self) -> None:
        """End all processes and threads of the run, in any state."""
        for consumer in self._consumers:
            if consumer.is_alive():
                consumer.abandon()
        self._process.stop()

    # ---- the steps, in order ----

    def _start(self) -> None:
        self._progress("starting the service")
        begun = time.monotonic()
        self._process.start()
        self._tell(f"the service is up after {time.monotonic() - begun:.1f} s, {self._process.url}")
        for _ in range(self._config.consumers):
            self._add_consumer()
        self._tell(f"{len(self._consumers)} Key_Shared consumers have subscribed, with a client each")

    def _publish(self) -> PublishedMessages:
        self._progress("publishing")
        begun = time.monotonic()
        published = publish(self._config, self._new_client("producer"), self._topic)
        took_s = time.monotonic() - begun
        ledgers = len(np.unique(published.ledger_ids))
        self._tell(
            f"{len(published):,} messages are published and confirmed, over {ledgers} ledgers, in {took_s:.1f} s"
        )
        return published

    def _leave(self) -> None:
        leaver = self._consumers[0]
        leaver.leave()
        self._end(leaver)
        self._tell(f"consumer {leaver.number + 1} has left")

    def _kill_and_restart(self) -> tuple[int, int, int]:
        """Return when it was killed, when it was started again, and when it was ready."""
        before = len(self._seen)
        killed_ns = time.time_ns()
        self._process.kill()
        self._tell(f"SIGKILL, with {before:,} delivered and {self._config.messages - before:,} to come")
        self._progress("the service is dead")
        wait_until(lambda: time.time_ns() > killed_ns + DOWN_S * 1e9, timeout_s=2 * DOWN_S)
        restarted_ns = time.time_ns()
        self._progress("starting it again")
        self._process.start()
        ready_ns = time.time_ns()
        self._tell(f"ready again on the same folder, {(ready_ns - killed_ns) / 1e9:.1f} s after the kill")
        return killed_ns, restarted_ns, ready_ns

    def _found_at_restart(self, last_due_s: float) -> int:
        """Return how many messages were not acknowledged."""
        # The service answers at once and opens its topics meanwhile.
        wait_until(lambda: self._metric("pulsar_subscription_back_log") is not None, timeout_s=10)
        waiting = self._metric("pulsar_subscription_back_log")
        self._wait_for(len(self._seen) + 1, last_due_s, "consumers are reconnecting")
        return int(waiting or 0)

    def _listen_for_duplicates(self) -> None:
        time.sleep(_QUIET_S)

    def _finish(self) -> Deliveries:
        self._progress("judging")
        for consumer in self._consumers:
            consumer.leave()
        for consumer in self._consumers:
            self._end(consumer)
        return _concatenate([consumer.deliveries for consumer in self._consumers])

    def _backlog_at_end(self) -> int:
        """Give the service's own count, once the last acknowledgements have arrived."""
        try:
            wait_until(lambda: self._metric("pulsar_subscription_back_log") == 0, timeout_s=2, interval_s=0.1)
        except TimeoutError:
            return int(self._metric("pulsar_subscription_back_log") or 0)
        return 0

    # ---- helpers ----

    def _new_client(self, name: str) -> pulsar.Client:
        return new_client(self._process.url, self._process.folder / f"client-{name}.log")

    def _add_consumer(self) -> None:
        number = len(self._consumers)
        consumer = RecordingConsumer(
            number,
            self._new_client(f"consumer-{number + 1}"),
            self._topic,
            seen=self._seen,
            hold_ms_max=self._config.hold_ms_max,
        )
        self._consumers.append(consumer)
        consumer.start()

    def _end(self, consumer: RecordingConsumer) -> None:
        consumer.join(timeout=30)
        if consumer.is_alive():
            raise StoryError(f"{consumer.name} does not end")
        self._check()

    def _wait_for(self, delivered: int, last_due_s: float, phase: str) -> None:
        """Wait until this many messages are delivered, or until missing ones count as lost."""
        self._progress(phase)
        deadline_ns = (last_due_s + _LATE_S_MAX) * 1e9
        while len(self._seen) < min(delivered, self._config.messages) and time.time_ns() < deadline_ns:
            self._check()
            self._progress(phase)
            time.sleep(_POLL_S)

    def _check(self) -> None:
        for consumer in self._consumers:
            if consumer.failure is not None:
                raise StoryError(f"{consumer.name} failed: {consumer.failure!r}") from consumer.failure
        if not self._process.is_running:
            raise StoryError(f"the service has ended; the end of its log:\n{self._process.log_tail()}")

    def _progress(self, phase: str) -> None:
        self._show_progress(len(self._seen), phase)

    def _metric(self, name: str, **labels: str) -> float | None:
        wanted = labels | {"topic": self._topic, "subscription": SUBSCRIPTION}
        return metric(self._process.read("/metrics"), name, wanted)

    def _operations(self, kind: str) -> int:
        """Count the operations on buckets that succeeded; the service leaves out those that never happened."""
        return int(self._metric("pulsar_delayed_message_index_bucket_op_count", state="succeed", type=kind) or 0)


def publish(config: StoryConfig, client: pulsar.Client, topic: str) -> PublishedMessages:
    """Publish all messages and wait for every receipt.

    Raises:
        StoryError: The service did not confirm one.
    """
    rng = random.Random(config.seed)
    producer = client.create_producer(topic, block_if_queue_full=True)
    receipts: list[tuple[int, int, int, int]] = []
    failures: list[Any] = []
    has_all = threading.Event()

    def on_receipt(key: int, deliver_at_ms: int, result: Any, message_id: Any) -> None:
        if result != pulsar.Result.Ok:
            failures.append(result)
        receipts.append((message_id.ledger_id(), message_id.entry_id(), key, deliver_at_ms))
        if len(receipts) == config.messages:
            has_all.set()

    for _ in range(config.messages):
        key = rng.randrange(config.keys)
        deliver_at_ms = time.time_ns() // 1_000_000 + rng.randint(config.delay_ms_min, config.delay_ms_max)
        producer.send_async(
            str(deliver_at_ms).encode(),
            partial(on_receipt, key, deliver_at_ms),
            partition_key=f"{KEY_PREFIX}{key}",
            deliver_at=deliver_at_ms,
        )
    producer.flush()
    if not has_all.wait(timeout=30) or failures:
        raise StoryError(f"{len(receipts) - len(failures):,} of {config.messages:,} messages were confirmed")
    client.close()
    columns = np.array(receipts, dtype=np.int64).T
    return PublishedMessages(ledger_ids=columns[0], entry_ids=columns[1], keys=columns[2], deliver_at_ms=columns[3])


def metric(text: str, name: str, labels: dict[str, str]) -> float | None:
    """Find one sample in Prometheus text by some of its labels; None if it is not there."""
    samples: Iterator[Any] = (s for family in text_string_to_metric_families(text) for s in family.samples)
    for sample in samples:
        if sample.name == name and labels.items() <= sample.labels.items():
            return float(sample.value)
    return None


def _concatenate(parts: list[Deliveries]) -> Deliveries:
    columns = [_columns(part) for part in parts]
    return Deliveries(**{name: np.concatenate([part[name] for part in columns]) for name in columns[0]})


def _columns(deliveries: Deliveries) -> dict[str, Int64Array]:
    return {field.name: getattr(deliveries, field.name) for field in fields(deliveries)}
