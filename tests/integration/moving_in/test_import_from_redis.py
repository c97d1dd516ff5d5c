"""`postdate import` from a sorted set and from a Celery broker, both real: what comes over, and what comes again."""

import base64
import json
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pulsar
import pytest
import redis
from celery import Celery
from click.testing import Result

from postdate.demo.process import wait_until
from tests.helpers.page_programs import working, write_programs
from tests.helpers.services.services import RunningService

pytestmark = pytest.mark.slow

Ask = Callable[[str], Result]

DUE_S = 1_900_000_000.25
DUE_MS = 1_900_000_000_250
MANY = 4_000


@pytest.fixture
def store(redis_url: str, ask: Ask) -> redis.Redis:
    """A connection to the Redis, and a topic with a subscription."""
    assert ask("subscriptions create T workers").exit_code == 0
    return redis.Redis.from_url(redis_url)


def scheduled(ask: Ask) -> dict[str, dict[str, Any]]:
    """Return the scheduled messages of the topic by their own ids."""
    messages = json.loads(ask("scheduled list T --json --payload --limit 10000").stdout)["messages"]
    return {one["properties"]["postdate.id"]: one for one in messages}


def payload_of(message: dict[str, Any]) -> bytes:
    return base64.b64decode(message["payload"])


def imported(ask: Ask, words: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(ask(f"import {words} --to T --json").stdout)
    return answer


def test_each_member_comes_once_at_its_score_and_stays_where_it_is(
    ask: Ask, redis_url: str, store: redis.Redis
) -> None:
    """More than two portions; in seconds and in milliseconds, bytes that are no text, and what is no time."""
    members = {b"m-%d" % number: DUE_S + number for number in range(1_200)}
    store.zadd("due", {**members, b"\xff\x00": DUE_S})
    store.zadd("due", {"retry-me": 5, "never": float("inf"), "micros": DUE_MS * 1_000.0})

    counted = imported(ask, f"redis-sorted-set {redis_url} due --score-unit s --dry-run")
    assert scheduled(ask) == {}
    first = imported(ask, f"redis-sorted-set {redis_url}?decode_responses=true due --score-unit s")

    assert counted == first
    assert (first["stored"], first["storedBefore"]) == (1_201, 0)
    assert sorted(name for one in first["left"] for name in one["names"]) == ["micros", "never", "retry-me"]
    assert sum(one["count"] for one in first["left"]) == 3
    there = scheduled(ask)
    assert {payload_of(one): one["deliverAtMs"] for one in there.values()} == {
        **{member: round(score * 1_000) for member, score in members.items()},
        b"\xff\x00": DUE_MS,
    }
    assert all(id_.startswith("redis:due:") for id_ in there)
    assert store.zcard("due") == 1_204


def test_a_second_import_moves_what_moved_and_brings_nothing_again(
    ask: Ask, redis_url: str, store: redis.Redis
) -> None:
    """Also what was delivered or cancelled here since the first one."""
    for name in ("a", "b", "c"):
        store.zadd("due", {json.dumps({"what": name, "who": f"key-{name}"}): DUE_MS})
    assert imported(ask, f"redis-sorted-set {redis_url} due --score-unit ms --key-field who")["stored"] == 3
    assert ask("scheduled cancel T --key key-a --yes").exit_code == 0
    store.zadd("due", {json.dumps({"what": "b", "who": "key-b"}): DUE_MS + 1, "d": DUE_MS})

    again = imported(ask, f"redis-sorted-set {redis_url} due --score-unit ms --key-field who")

    assert (again["stored"], again["storedBefore"], again["left"][0]["names"]) == (1, 2, ["d"])
    assert {one["key"]: one["deliverAtMs"] for one in scheduled(ask).values()} == {"key-b": DUE_MS + 1, "key-c": DUE_MS}
    said = ask(f"import redis-sorted-set {redis_url} due --score-unit ms --to T")
    assert said.exit_code == 0
    assert " stored in " in said.stdout


def test_a_run_that_is_killed_goes_on_and_each_member_is_there_once(
    ask: Ask, target: RunningService, topic: str, redis_url: str, store: redis.Redis
) -> None:
    store.zadd("due", {f"m-{number}": DUE_S for number in range(MANY)})
    words = f"import redis-sorted-set {redis_url} due --score-unit s --to {topic} --url {target.web_url}".split()
    with subprocess.Popen([sys.executable, "-m", "postdate", *words]) as process:
        wait_until(lambda: ask("scheduled list T --limit 1 --json").stdout.count("messageId") > 0, timeout_s=60)
        process.kill()

    again = imported(ask, f"redis-sorted-set {redis_url} due --score-unit s")

    assert again["stored"] + again["storedBefore"] == MANY
    messages = json.loads(ask(f"scheduled list T --json --limit {2 * MANY}").stdout)["messages"]
    assert len(messages) == MANY
    assert len({one["properties"]["postdate.id"] for one in messages}) == MANY


def test_what_cannot_be_imported_is_refused_in_one_line(
    ask: Ask, redis_url: str, store: redis.Redis, topic: str, target: RunningService
) -> None:
    store.set("due", "x")
    store.zadd("set", {"m": DUE_MS})
    client = pulsar.Client(target.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    exclusive = f"{topic}-exclusive"
    client.subscribe(exclusive, "only", consumer_type=pulsar.ConsumerType.Exclusive)

    for words, says in (
        (
            f"redis-sorted-set {redis_url} due --score-unit s --to T",
            "the key due of this Redis has the type string, not zset",
        ),
        (f"celery {redis_url} --queue set --to T", "the key set of this Redis has the type zset, not list"),
        ("celery amqp://localhost --to T", "a broker of AMQP"),
        (
            "redis-sorted-set redis://:secret@127.0.0.1:1/0 due --score-unit s --to T",
            "Redis at redis://127.0.0.1:1/0: ",
        ),
        (
            "redis-sorted-set redis://127.0.0.1:1/0?password=secret due --score-unit s --to T",
            "Redis at redis://127.0.0.1:1/0: ",
        ),
        (f"redis-sorted-set {redis_url} nosuch --score-unit s --to T", "there is no key nosuch"),
        (f"celery {redis_url} --queue nosuch --to T", "there is no list nosuch"),
        (
            f"redis-sorted-set {redis_url} set --score-unit s --to nowhere",
            "`postdate subscriptions create nowhere NAME`",
        ),
        (
            f"redis-sorted-set {redis_url} set --score-unit s --to nowhere --dry-run",
            "`postdate subscriptions create nowhere NAME`",
        ),
        (
            "pulsar pulsar://h T --subscription s --admin-url http://127.0.0.1:1 --to nowhere",
            "There is no topic nowhere",
        ),
        (f"redis-sorted-set {redis_url} set --score-unit s --to {exclusive} --dry-run", "delays (only is Exclusive)"),
        (f"redis-sorted-set {redis_url} set --score-unit s --to T --state /", "is a directory"),
        ("pulsar pulsar://127.0.0.1:1 T --subscription s --admin-url http://127.0.0.1:1", "no Pulsar answers at http"),
        (
            "pulsar pulsar://127.0.0.1:1 T --subscription s --admin-url http://h:abc",
            "no Pulsar answers at http://h:abc",
        ),
    ):
        refused = ask(f"import {words}")
        assert (refused.exit_code, refused.stdout) == (2, ""), (words, refused.output, refused.exception)
        assert says in refused.stderr
        assert "secret" not in refused.stderr
    assert scheduled(ask) == {}
    client.close()


def test_tasks_come_over_from_queues_and_from_killed_workers_and_are_run_here(
    ask: Ask, target: RunningService, topic: str, redis_url: str, store: redis.Redis, tmp_path: Path
) -> None:
    write_programs(
        "moving-from-celery.md",
        tmp_path,
        {
            "redis://127.0.0.1:6379/0": redis_url,
            "pulsar://127.0.0.1:6650": target.url,
            '"tasks", "workers"': f'"{topic}", "workers"',
        },
    )
    celery = Celery(broker=redis_url)
    eta = datetime.now(UTC) + timedelta(hours=2)

    def send(*args: str, **options: Any) -> str:
        return str(celery.send_task("jobs.remind", args, **options).id)

    with working(
        tmp_path, "-m", "celery", "--app", "tasks", "worker", "--pool", "solo", "--loglevel", "info"
    ) as worker:
        worker.wait_for(" ready.")
        held = [send("held", str(number), countdown=3_600) for number in range(3)]
        wait_until(lambda: store.hlen("unacked") == 3, timeout_s=30)
    waiting = [
        send("anna", "plants", eta=eta),
        send("ben", "first", eta=eta, priority=3),
        send("x", "y", eta=eta, queue="mail"),
    ]
    plain = send("now", "at once")
    store.lpush("celery", b"no task")

    only_mail = imported(ask, f"celery {redis_url} --queue mail")
    found = imported(ask, f"celery {redis_url} --queue mail --queue celery")

    assert (only_mail["stored"], found["stored"], found["storedBefore"]) == (1, 5, 1)
    left = {one["reason"]: one["names"] for one in found["left"]}
    assert [*left.values()] == [["no task"], [plain]]
    there = scheduled(ask)
    assert set(there) == {*held, *waiting}
    assert {there[one]["deliverAtMs"] for one in waiting} == {int(eta.timestamp() * 1_000)}
    assert json.loads(payload_of(there[waiting[0]]))[:2] == [["anna", "plants"], {}]
    assert {one["properties"]["task"] for one in there.values()} == {"jobs.remind"}

    rest = ask(f"import celery {redis_url} --queue celery --queue nosuch --all --to T --json")
    assert (json.loads(rest.stdout)["stored"], "there is no list nosuch" in rest.stderr) == (1, True)
    with working(tmp_path, "worker.py") as ours:
        ours.wait_for("now: at once")
        ask("scheduled deliver-now T --all --yes")
        ours.wait_for("anna: plants")
        ours.wait_for("held: 2")
        assert imported(ask, f"celery {redis_url} --queue mail --queue celery --all")["stored"] == 0
        assert sorted(ours.printed) == sorted(
            ["anna: plants", "ben: first", "held: 0", "held: 1", "held: 2", "now: at once", "x: y"]
        )
        wait_until(lambda: scheduled(ask) == {}, timeout_s=30)
