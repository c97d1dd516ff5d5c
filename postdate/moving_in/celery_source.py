"""Read the tasks that wait at a Celery broker of Redis: none is removed, and none is run.

A task with an ETA is in the list of its queue, or, where a worker has fetched it and waits, in the hash `unacked` of
all queues (`kombu.transport.redis`). Lists are read before it, as a worker may fetch a task meanwhile.
"""

import json
from base64 import b64decode
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from postdate.command_line.endings import say
from postdate.command_line.times import parse_time_ms
from postdate.moving_in.messages import Found, Left, MovingInError, Waiting, schedulable_ms
from postdate.moving_in.redis_source import MEMBERS_PER_PAGE, check_type, name_of

if TYPE_CHECKING:
    import redis

_SEPARATOR: Final = "\x06\x16"
_PRIORITIES: Final = 10
_PROPERTIES: Final = ("task", "retries", "expires", "compression")
"""The headers of a task that become properties."""


def waiting_tasks(client: "redis.Redis", queues: Sequence[str], prefix: str, *, takes_all: bool) -> Found:
    """Give the tasks of queues.

    Args:
        client: The connection.
        queues: The names of the queues.
        prefix: What Celery's `global_keyprefix` puts before each key.
        takes_all: Whether also tasks without an ETA.

    Raises:
        MovingInError: A key has another type, or none of the queues has a task.
    """
    without = {*queues}
    for queue in queues:
        for raw in _of_queue(client, prefix + queue):
            without.discard(queue)
            yield _task_of(raw, takes_all=takes_all)
    check_type(client, f"{prefix}unacked", "hash")
    for _, raw in client.hscan_iter(f"{prefix}unacked", count=MEMBERS_PER_PAGE):
        try:
            message, exchange, routing_key = json.loads(raw)
        except (ValueError, TypeError):
            yield Left(name_of(raw), "it is no message of Celery's")
            continue
        found = {*queues} & _queues_of(client, prefix, exchange, routing_key)
        if found:
            without -= found
            yield _task_of(json.dumps(message).encode(), takes_all=takes_all)
    for queue in sorted(without):
        missing = f"there is no list {prefix}{queue} in this Redis: the queue is empty, or has another name"
        if without == {*queues}:
            raise MovingInError(missing)
        say(missing)


def _of_queue(client: "redis.Redis", queue: str) -> Iterator[bytes]:
    """Give the messages of a queue, which has a list for each priority.

    New ones come in at a list's begin and workers take from its end. So pages from the begin miss none that stays, and
    what comes in meanwhile lets some come twice.
    """
    for priority in range(_PRIORITIES):
        key = f"{queue}{_SEPARATOR}{priority}" if priority else queue
        check_type(client, key, "list")
        start = 0
        while page := client.lrange(key, start, start + MEMBERS_PER_PAGE - 1):
            yield from page
            start += len(page)


def _queues_of(client: "redis.Redis", prefix: str, exchange: str, routing_key: str) -> set[str]:
    """Return the queues that a message came from, by the bindings of its exchange; the default one has none."""
    if not exchange:
        return {routing_key}
    bound = (one.decode().split(_SEPARATOR) for one in client.smembers(f"{prefix}_kombu.binding.{exchange}"))
    return {queue for key, _, queue in bound if key == routing_key}


def _task_of(raw: bytes, *, takes_all: bool) -> Waiting | Left:
    try:
        message: Any = json.loads(raw)
        headers, body = message["headers"], message["body"]
        task_id, task, eta = headers["id"] or "", headers["task"] or "", headers.get("eta")
        is_base64 = message["properties"].get("body_encoding") == "base64"
        payload = b64decode(body, validate=True) if is_base64 else body.encode()
        properties = {name: str(headers[name]) for name in _PROPERTIES if headers.get(name)}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        task_id = task = ""
    if not task_id or not task:
        return Left(name_of(raw), "it is no task of Celery 4 or later")
    if eta is None and not takes_all:
        return Left(task_id, "it has no ETA (--all takes these too, as due at once)")
    try:
        deliver_at_ms = None if eta is None else schedulable_ms(parse_time_ms(eta))
    except (ValueError, AttributeError):
        return Left(task_id, "its ETA is no time with a zone")
    return Waiting(
        task_id, payload, deliver_at_ms, None, {**properties, "contentType": str(message.get("content-type"))}
    )
