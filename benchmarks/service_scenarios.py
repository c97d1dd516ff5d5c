"""The scenarios of the service benchmark: one function a scenario, the same for every service.

A scenario gets a `Stage`, a running service and the means to run client programs against it, and returns figures by
name; `FIGURES` says what they are. Every scenario has topics of its own and ends its subscriptions, so that none finds
what another has left. All but `recovery` share a service that is warm; that one kills its service, and has its own.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from benchmarks.service_load import ConsumeOrder, ProduceOrder
from benchmarks.service_processes import LoadError, LoadProcess, delayed_count, resident_mib, wait_for_port
from tests.helpers.services.services import RunningService

HOUR_MS: Final = 3_600_000

_WARM_UP_MESSAGES: Final = 50_000
"""Sent at once and again with a delay. A Java machine compiles its hot code within about this many."""

_LEAD_MS: Final = 3_000
_LEAD_MESSAGES_PER_S: Final = 8_000
"""Everything is to be produced before the first message is due: a third of the rate that a quiet machine reaches."""

_LEAD_ATTEMPTS: Final = 3

ALREADY_DUE: Final = 100
"""How many messages fall due while the service is dead."""

_ALREADY_DUE_LEAD_MS: Final = 2_000
_SETTLE_TIMEOUT_S: Final = 180.0
QUIET_S: Final = 10.0
"""How long after a recovery the memory is looked at; a real Pulsar still reads then."""


class Better(Enum):
    """Which way a figure gets better."""

    HIGHER = "higher"
    LOWER = "lower"


@dataclass(frozen=True, slots=True)
class ScenarioFigure:
    """The meaning of one figure.

    Attributes:
        label: Its name in the table.
        unit: Its unit.
        better: Which way it gets better.
        target: The value that Postdate is to reach; None where nothing was promised.
    """

    label: str
    unit: str
    better: Better
    target: float | None = None


def _lateness_figures(rate: int) -> dict[str, ScenarioFigure]:
    what = f"{rate:,} due a second for 10 s: lateness"
    return {
        f"lateness_{rate}_p50_ms": ScenarioFigure(f"{what} p50", "ms", Better.LOWER),
        f"lateness_{rate}_p99_ms": ScenarioFigure(f"{what} p99", "ms", Better.LOWER, target=20.0),
        f"lateness_{rate}_max_ms": ScenarioFigure(f"{what} max", "ms", Better.LOWER),
        f"lateness_{rate}_early": ScenarioFigure(
            f"{rate:,} due a second for 10 s: before their time", "msg", Better.LOWER, 0.0
        ),
    }


FIGURES: Final[dict[str, ScenarioFigure]] = {
    "produce_per_s": ScenarioFigure("produce, immediate", "msg/s", Better.HIGHER),
    "produce_delayed_per_s": ScenarioFigure("produce, delayed by an hour", "msg/s", Better.HIGHER),
    "consume_per_s": ScenarioFigure("consume and acknowledge a backlog", "msg/s", Better.HIGHER),
    "both_in_per_s": ScenarioFigure("produce and consume at once: in", "msg/s", Better.HIGHER),
    "both_out_per_s": ScenarioFigure("produce and consume at once: out", "msg/s", Better.HIGHER),
    **_lateness_figures(1_000),
    **_lateness_figures(10_000),
    "instant_first_ms": ScenarioFigure("100,000 due at one instant: first", "ms", Better.LOWER),
    "instant_last_ms": ScenarioFigure("100,000 due at one instant: last", "ms", Better.LOWER),
    "instant_per_s": ScenarioFigure("100,000 due at one instant: rate", "msg/s", Better.HIGHER),
    "instant_early": ScenarioFigure("100,000 due at one instant: before their time", "msg", Better.LOWER, 0.0),
    "recovery_port_s": ScenarioFigure("{delayed:,} delayed, kill -9, start: port open", "s", Better.LOWER),
    "recovery_subscribed_s": ScenarioFigure("{delayed:,} delayed, kill -9, start: subscribed", "s", Better.LOWER),
    "recovery_first_s": ScenarioFigure(
        "{delayed:,} delayed, kill -9, start: first delivery", "s", Better.LOWER, target=2.0
    ),
    "recovery_all_due_s": ScenarioFigure("{delayed:,} delayed, kill -9, start: all that was due", "s", Better.LOWER),
    "recovery_before_mib": ScenarioFigure("{delayed:,} delayed: resident memory before the kill", "MiB", Better.LOWER),
    "recovery_after_mib": ScenarioFigure("{delayed:,} delayed: resident memory after it", "MiB", Better.LOWER),
}


class Stage:
    """A running service, and client programs that end with the stage.

    Args:
        service: The service that is measured.
        folder: Where the programs' logs go.
        tell: Shows a line of progress.
        messages: How many messages a rate is measured with.
        delayed: How many messages are delayed while the service is killed.
    """

    def __init__(
        self, service: RunningService, folder: Path, *, tell: Callable[[str], None], messages: int, delayed: int
    ) -> None:
        self.service = service
        self.tell = tell
        self.messages = messages
        self.delayed = delayed
        self._log_path = folder / "clients.log"
        self._programs: list[LoadProcess] = []

    def new_topic(self) -> str:
        """Name a topic that is new."""
        return f"persistent://public/default/bench-{uuid4().hex[:12]}"

    def producer(self, topic: str, messages: int, **options: Any) -> LoadProcess:
        """Return a producer that has connected."""
        order = ProduceOrder(url=self.service.url, topic=topic, messages=messages, **options)
        return self._launch(order).connect()

    def consumer(self, topic: str, messages: int, *, connects: bool = True, **options: Any) -> LoadProcess:
        """Return a consumer that has subscribed, or that will when it is told to."""
        program = self._launch(ConsumeOrder(url=self.service.url, topic=topic, messages=messages, **options))
        return program.connect() if connects else program

    def subscribe(self, topic: str) -> None:
        """Make a subscription, so that messages are kept."""
        program = self.consumer(topic, 0)
        program.go()
        program.run()

    def unsubscribe(self, topic: str) -> None:
        """End a subscription and what it has kept."""
        program = self.consumer(topic, 0, unsubscribes=True)
        program.go()
        program.run()

    @contextlib.contextmanager
    def idle_consumer(self, topic: str) -> Iterator[LoadProcess]:
        """Keep a consumer connected meanwhile, without which neither service reads what is published."""
        program = self.consumer(topic, 0)
        program.go()
        yield program

    def close(self) -> None:
        """End every client program, also those of a scenario that has failed."""
        for program in self._programs:
            program.close()
        self._programs.clear()

    def _launch(self, order: ProduceOrder | ConsumeOrder) -> LoadProcess:
        program = LoadProcess(order, self._log_path)
        self._programs.append(program)
        return program


def warm_up(stage: Stage) -> None:
    """Do a little of everything, for what is compiled or loaded at first use."""
    produce_and_consume(stage, messages=_WARM_UP_MESSAGES)
    _due(stage, messages=_WARM_UP_MESSAGES, spread_ms=2_000)


def produce(stage: Stage) -> dict[str, float]:
    """Measure how fast one producer gets its messages confirmed, at once and delayed by an hour."""
    figures = {}
    for name, lead_ms in (("produce_per_s", None), ("produce_delayed_per_s", HOUR_MS)):
        topic = stage.new_topic()
        stage.subscribe(topic)
        figures[name] = run_producer(stage.producer(topic, stage.messages, lead_ms=lead_ms), stage.messages)["per_s"]
        stage.unsubscribe(topic)
    return figures


def consume(stage: Stage) -> dict[str, float]:
    """Measure how fast one consumer gets and acknowledges what has been waiting for it."""
    topic = stage.new_topic()
    stage.subscribe(topic)
    run_producer(stage.producer(topic, stage.messages), stage.messages)
    arrived = _check_arrivals(stage.consumer(topic, stage.messages, unsubscribes=True).run(), stage.messages)
    return {"consume_per_s": arrived["per_s"]}


def produce_and_consume(stage: Stage, *, messages: int | None = None) -> dict[str, float]:
    """Measure a producer and a consumer at the same time."""
    count = messages or stage.messages
    topic = stage.new_topic()
    consumer = stage.consumer(topic, count, unsubscribes=True)
    producer = stage.producer(topic, count)
    consumer.go()
    produced = run_producer(producer, count)
    arrived = _check_arrivals(consumer.finish(), count)
    out_s = (arrived["last_ns"] - produced["begun_ns"]) / 1e9
    return {"both_in_per_s": produced["per_s"], "both_out_per_s": count / out_s}


def lateness(stage: Stage) -> dict[str, float]:
    """Measure how late messages are that fall due evenly, at two rates."""
    figures: dict[str, float] = {}
    for rate in (1_000, 10_000):
        arrived = _due(stage, messages=10 * rate, spread_ms=10_000)
        stage.tell(f"{rate:,} due a second: p99 {arrived['late_p99_ms']:.1f} ms")
        figures |= {f"lateness_{rate}_{name}_ms": arrived[f"late_{name}_ms"] for name in ("p50", "p99", "max")}
        figures[f"lateness_{rate}_early"] = arrived["early"]
    return figures


def instant(stage: Stage) -> dict[str, float]:
    """Measure how long it takes to deliver what falls due all at once."""
    arrived = _due(stage, messages=100_000, spread_ms=0)
    return {
        "instant_first_ms": arrived["late_first_ms"],
        "instant_last_ms": arrived["late_last_ms"],
        "instant_per_s": arrived["per_s"],
        "instant_early": arrived["early"],
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class KilledService:
    """A service that was killed while messages were delayed.

    Attributes:
        at_ns: When.
        first_due_ms: When the first of those is due that fall due soon.
        before_mib: Its resident memory just before, in MiB.
        peak_mib: The most that it ever had.
    """

    at_ns: int
    first_due_ms: int
    before_mib: float
    peak_mib: float


def kill_with_delayed(stage: Stage, topic: str) -> KilledService:
    """Delay as many messages as the stage says, let `ALREADY_DUE` more be due soon, and kill the service.

    Raises:
        LoadError: Something was not stored, or the kill came too late.
    """
    service = stage.service
    with stage.idle_consumer(topic):
        # Nothing of these may fall due before the end.
        lead_ms = 600_000 + _lead_ms(stage.delayed)
        producer = stage.producer(topic, stage.delayed, lead_ms=lead_ms, spread_ms=HOUR_MS, is_shuffled=True)
        run_producer(producer, stage.delayed, tell=stage.tell)
        _wait_until_tracked(stage, topic)
        before_mib, peak_mib = resident_mib(service.pid), resident_mib(service.pid, "VmHWM")
        due_soon = stage.producer(topic, ALREADY_DUE, lead_ms=_ALREADY_DUE_LEAD_MS)
        first_due_ms = int(run_producer(due_soon, ALREADY_DUE)["first_deliver_at_ms"])
        service.kill()
        at_ns = time.time_ns()
        if at_ns // 1_000_000 >= first_due_ms:
            service.start()
            raise LoadError("the kill came after the first message was due")
    stage.close()
    return KilledService(at_ns=at_ns, first_due_ms=first_due_ms, before_mib=before_mib, peak_mib=peak_mib)


def recovery(stage: Stage) -> dict[str, float]:
    """Kill the service with many messages delayed and measure until it delivers what fell due meanwhile."""
    service, topic = stage.service, stage.new_topic()
    killed = kill_with_delayed(stage, topic)
    consumer = stage.consumer(topic, ALREADY_DUE, connects=False)
    time.sleep(max(0.0, killed.first_due_ms / 1e3 + 0.5 - time.time_ns() / 1e9))

    begun_ns = time.time_ns()
    service.start(wait=False)
    wait_for_port(service.port)
    port_ns = time.time_ns()
    consumer.go()
    subscribed_ns = consumer.wait_for("ready")["at_ns"]
    arrived = consumer.run()
    time.sleep(QUIET_S)
    return {
        "recovery_port_s": (port_ns - begun_ns) / 1e9,
        "recovery_subscribed_s": (subscribed_ns - begun_ns) / 1e9,
        "recovery_first_s": (arrived["first_ns"] - begun_ns) / 1e9,
        "recovery_all_due_s": (arrived["last_ns"] - begun_ns) / 1e9,
        "recovery_before_mib": killed.before_mib,
        "recovery_after_mib": resident_mib(service.pid),
        "recovery_peak_mib": killed.peak_mib,
    }


SCENARIOS: Final[dict[str, Callable[[Stage], dict[str, float]]]] = {
    "produce": produce,
    "consume": consume,
    "both": produce_and_consume,
    "lateness": lateness,
    "instant": instant,
    "recovery": recovery,
}

NEEDS_OWN_SERVICE: Final = frozenset({"recovery"})
DEPENDS_ON_TICK: Final = frozenset({"lateness", "instant"})


def _due(stage: Stage, *, messages: int, spread_ms: int) -> dict[str, float]:
    """Produce delayed messages, all of them before the first is due, and tell how late they came."""
    lead_ms = _lead_ms(messages)
    for _ in range(_LEAD_ATTEMPTS):
        topic = stage.new_topic()
        consumer = stage.consumer(topic, messages, unsubscribes=True)
        producer = stage.producer(topic, messages, lead_ms=lead_ms, spread_ms=spread_ms)
        consumer.go()
        produced = run_producer(producer, messages)
        arrived = _check_arrivals(consumer.finish(), messages)
        if produced["ended_ns"] / 1e6 < produced["first_deliver_at_ms"]:
            return arrived
        lead_ms *= 2
        stage.tell(f"producing was not finished in time; once more, {lead_ms / 1e3:.0f} s ahead")
    raise LoadError("producing takes too long to measure lateness")


def _lead_ms(messages: int) -> int:
    return _LEAD_MS + messages * 1_000 // _LEAD_MESSAGES_PER_S


def run_producer(program: LoadProcess, messages: int, *, tell: Callable[[str], None] | None = None) -> dict[str, float]:
    """Let a producer send all, and return its result; `LoadError` if one was not confirmed."""
    on_progress = None if tell is None else lambda sent: tell(f"{sent:,} of {messages:,} sent")
    produced = program.run(on_progress=on_progress)
    if produced["confirmed"] != messages:
        raise LoadError(f"{produced['confirmed']:,} of {messages:,} messages were confirmed")
    return produced


def _check_arrivals(arrived: dict[str, float], messages: int) -> dict[str, float]:
    # It received as many as were sent: one that came twice hides one that never came.
    if arrived["repeated"]:
        raise LoadError(f"{arrived['repeated']:,} of {messages:,} messages came twice, though nothing failed")
    return arrived


def _wait_until_tracked(stage: Stage, topic: str) -> None:
    """Wait until the service has read everything that is delayed, as far as it ever does."""
    deadline = time.monotonic() + _SETTLE_TIMEOUT_S
    count = -1
    while count < stage.delayed and time.monotonic() < deadline:
        time.sleep(1.0)
        count = delayed_count(stage.service.web_url, topic)
    stage.tell(f"the service knows {count:,} delayed messages")
