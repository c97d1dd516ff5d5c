"""The same questions to Redis, for `benchmarks.scheduled`: a sorted set of ids by time, a hash a message, a set a key.

`redis-server` is started for this with an append-only file that is synced at every write, as an answer of Postdate is
durable too. Work for which Redis has no command is done as its users do: with pipelines of simple ones.
"""

import shutil
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from postdate.demo.process import free_ports, wait_until

PAYLOAD: Final = b"x" * 200
HORIZON_MS: Final = 7 * 24 * 3_600_000
REPEATS: Final = 7
_PIPELINE: Final = 1_000

Command = tuple[bytes | str | int, ...]


class Redis:
    """A connection that speaks enough of RESP for this."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._file = self._socket.makefile("rb", buffering=1 << 16)

    def run(self, commands: Iterable[Command]) -> list[Any]:
        """Send commands as one pipeline; return the answers."""
        sent, data = 0, bytearray()
        for command in commands:
            words = [word if isinstance(word, bytes) else str(word).encode() for word in command]
            data += b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)
            sent += 1
        self._socket.sendall(data)
        return [self._read() for _ in range(sent)]

    def run_all(self, commands: Iterable[Command]) -> None:
        """Send many commands in pipelines, and drop the answers."""
        portion: list[Command] = []
        for command in commands:
            portion.append(command)
            if len(portion) == _PIPELINE:
                self.run(portion)
                portion = []
        if portion:
            self.run(portion)

    def close(self) -> None:
        """End the connection."""
        self._file.close()
        self._socket.close()

    def _read(self) -> Any:
        line = self._file.readline()
        kind, rest = line[:1], line[1:-2]
        if kind in (b"+", b":"):
            return rest
        if kind == b"$":
            size = int(rest)
            return None if size < 0 else self._file.read(size + 2)[:-2]
        if kind == b"*":
            return [self._read() for _ in range(int(rest))]
        raise RuntimeError(f"Redis says {line!r}")


def measure_redis(messages: int, bulk: int, first_ms: int) -> None:
    """Fill a Redis and ask it; says so where there is none."""
    server = shutil.which("redis-server")
    print("\nRedis: a sorted set, a hash a message, a set a key; appendfsync always")
    if server is None:
        print("skipped: there is no redis-server (apt-get install redis-server)")
        return
    folder = Path(tempfile.mkdtemp(prefix="postdate-redis-"))
    (port,) = free_ports(1)
    settings = {
        "port": port,
        "dir": folder,
        "bind": "127.0.0.1",
        "appendonly": "yes",
        "appendfsync": "always",
        "save": "",
    }
    words = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
    process = subprocess.Popen([server, *words], stdout=subprocess.DEVNULL)
    try:
        wait_until(lambda: _answers(port), timeout_s=10)
        redis = Redis(port)
        fill(redis, messages, first_ms)
        ask(redis, messages, bulk, first_ms)
        redis.close()
    finally:
        process.terminate()
        process.wait(timeout=30)
        shutil.rmtree(folder, ignore_errors=True)


def _answers(port: int) -> bool:
    try:
        Redis(port).close()
    except OSError:
        return False
    return True


def fill(redis: Redis, messages: int, first_ms: int) -> None:
    """Put all messages in; they are synced once, at the end, which is not what is measured."""

    def commands() -> Iterable[Command]:
        for number in range(messages):
            deliver_at_ms = first_ms + number * 7_919 % messages * HORIZON_MS // messages
            key = f"customer-{number % max(1, messages // 10)}"
            campaign = "spring" if number % 2 else "autumn"
            yield "ZADD", "due", deliver_at_ms, number
            yield "HSET", f"m:{number}", "key", key, "campaign", campaign, "payload", PAYLOAD
            yield "SADD", f"k:{key}", number

    begin = time.perf_counter()
    redis.run([("CONFIG", "SET", "appendfsync", "no")])
    redis.run_all(commands())
    redis.run([("CONFIG", "SET", "appendfsync", "always")])
    print(f"filled in {time.perf_counter() - begin:.0f} s")


def ask(redis: Redis, messages: int, bulk: int, first_ms: int) -> None:
    """Ask, and print how long the answers take."""
    print(f"{'':<44}{'first ms':>10}{'median ms':>10}")

    def page(start: str) -> Callable[[], None]:
        def ask_page() -> None:
            (ids,) = redis.run([("ZRANGEBYSCORE", "due", start, "+inf", "LIMIT", 0, 100)])
            redis.run([("HGETALL", b"m:" + one) for one in ids])

        return ask_page

    def histogram() -> None:
        step = HORIZON_MS // 60
        edges = range(first_ms, first_ms + HORIZON_MS, step)
        redis.run([("ZCOUNT", "due", edge, f"({edge + step}") for edge in edges])

    def by_key() -> None:
        (ids,) = redis.run([("SMEMBERS", "k:customer-7")])
        redis.run([("ZSCORE", "due", one) for one in ids] + [("HGETALL", b"m:" + one) for one in ids])

    numbers = iter(range(messages))

    def cancel_one() -> None:
        number = next(numbers)
        (key,) = redis.run([("HGET", f"m:{number}", "key")])
        redis.run([("ZREM", "due", number), ("DEL", f"m:{number}"), ("SREM", b"k:" + key, number)])

    def move_range() -> None:
        until = first_ms + HORIZON_MS * bulk // messages
        (found,) = redis.run([("ZRANGEBYSCORE", "due", first_ms, f"({until}")])
        redis.run_all(("ZINCRBY", "due", HORIZON_MS, one) for one in found)

    def cancel_by_property() -> None:
        # As Postdate is asked: with many messages, within a range that has twice as many as are cancelled.
        begin_ms, end = first_ms + HORIZON_MS * bulk // messages, "+inf"
        if messages > 3 * bulk:
            end = f"({begin_ms + HORIZON_MS * 2 * bulk // messages}"
        (ids,) = redis.run([("ZRANGEBYSCORE", "due", begin_ms, end)])
        for begin in range(0, len(ids), _PIPELINE):
            portion = ids[begin : begin + _PIPELINE]
            found = redis.run([("HMGET", b"m:" + one, "campaign", "key") for one in portion])
            gone = [(one, key) for one, (campaign, key) in zip(portion, found, strict=True) if campaign == b"spring"]
            redis.run([("ZREM", "due", *(one for one, _ in gone)), ("DEL", *(b"m:" + one for one, _ in gone))])
            redis.run([("SREM", b"k:" + key, one) for one, key in gone])

    for name, question, repeats in (
        ("first page of 100", page("-inf"), REPEATS),
        ("page of 100 from the middle", page(str(first_ms + HORIZON_MS // 2)), REPEATS),
        ("histogram of 60", histogram, REPEATS),
        ("by key", by_key, REPEATS),
        ("cancel one by id", cancel_one, REPEATS),
        (f"reschedule some {bulk} by range", move_range, 1),
        (f"cancel some {bulk} by property", cancel_by_property, 1),
    ):
        taken = []
        for _ in range(repeats):
            begin = time.perf_counter()
            question()
            taken.append(time.perf_counter() - begin)
        print(f"{name:<44}{taken[0] * 1e3:>10.1f}{statistics.median(taken[1:] or taken) * 1e3:>10.1f}", flush=True)
