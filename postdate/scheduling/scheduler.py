"""`Scheduler`: publish messages for later, and look at them, cancel them, move them and send them now.

A thin layer over `pulsar-client` for publishing and the service's HTTP interface for the other calls. A handle is
the message's id as text. It can be stored: it means the same message after a restart of the caller or the service.

The examples are run against a real service by `tests/integration/scheduling/test_scheduler_examples.py`; there
`scheduler` is a `Scheduler` of the topic `reminders`, which has a Shared subscription.
"""

import base64
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import islice
from typing import TYPE_CHECKING, Final

from managed_ledger.positions.value_types import Json
from postdate.command_line.milliseconds import YEAR_1990_MS, may_be_seconds, seconds_refusal
from postdate.scheduling.api import ScheduleApi, Token, new_operation_id, topic_path
from postdate.scheduling.clients import new_client
from postdate.scheduling.errors import (
    NoSubscriptionError,
    ScheduleArgumentError,
    ScheduleRequestError,
    ServiceUnavailableError,
)
from postdate.scheduling.values import (
    NOTHING,
    TIME_MS_MAX,
    Everything,
    Matching,
    Outcome,
    ScheduledMessage,
    Time,
    Which,
    span_ms,
    time_ms,
)

if TYPE_CHECKING:
    import pulsar

HANDLES_PER_REQUEST: Final = 10_000
SUBSCRIPTION_TRUSTED_S: Final = 10.0
"""How long `schedule` relies on a subscription that it has seen. One that is deleted within that time is missed."""


class Scheduler:
    """Schedules messages on one topic; may be used by any number of threads.

    >>> handle = scheduler.schedule(b"water the plants", key="anna", after=timedelta(hours=3))
    >>> scheduler.cancel(handle).changed
    1

    Only subscriptions of type Shared and Key_Shared delay, and a subscription gets what is published after it was made.
    So `schedule` looks for one that delays before it publishes, and again when `SUBSCRIPTION_TRUSTED_S` (10 s) have
    passed. A look after the receipt would be too late, and one for each message would double the cost of publishing.

    Args:
        service_url: Where Pulsar clients connect, like `pulsar://127.0.0.1:6650`.
        admin_url: The service's web port, like `http://127.0.0.1:8080`.
        topic: The topic, in any form that Pulsar's clients take.
        subscription: The subscription whose messages are looked at and changed; None for all that delay. If it is
            missing, `schedule` makes it: Shared, from the end of the topic on. All other methods refuse it then.
        token: A token, or a function that gives one, where the service authenticates callers. Its role
            needs the grants to produce and to consume, or only the second one to look and to cancel.
        tls_trust_certs_file: The authorities to trust for `pulsar+ssl` and `https`; None for those of the system.
        tls_certificate_file: The caller's certificate, where the service asks for one; without a token it is what
            authenticates the caller.
        tls_private_key_file: The key of the certificate, without a password.

    Raises:
        ScheduleArgumentError: An address or the topic's name is none, or a file cannot be used.
    """

    def __init__(
        self,
        service_url: str,
        admin_url: str,
        topic: str,
        *,
        subscription: str | None = None,
        token: Token = None,
        tls_trust_certs_file: str | None = None,
        tls_certificate_file: str | None = None,
        tls_private_key_file: str | None = None,
    ) -> None:
        if not service_url.startswith(("pulsar://", "pulsar+ssl://")):
            raise ScheduleArgumentError(f"{service_url!r} is no address of a service: write pulsar://host:port")
        self.topic = topic
        self._service_url = service_url
        self._path = topic_path(topic)
        self._subscription = subscription
        self._api = ScheduleApi(
            admin_url,
            token=token,
            tls_trust_certs_file=tls_trust_certs_file,
            tls_certificate_file=tls_certificate_file,
            tls_private_key_file=tls_private_key_file,
        )
        self._lock = threading.Lock()
        self._subscription_lock = threading.Lock()
        self._subscription_trusted_until_s = 0.0
        self._client: pulsar.Client | None = None
        self._producer: pulsar.Producer | None = None

    def __enter__(self) -> "Scheduler":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection, if there is one; the scheduler connects again when it is used again."""
        with self._lock:
            client, self._client, self._producer = self._client, None, None
        if client is not None:
            client.close()

    def schedule(
        self,
        payload: bytes,
        *,
        id: str | None = None,  # noqa: A002 - every call names it
        key: str | None = None,
        properties: Mapping[str, str] | None = None,
        at: Time | None = None,
        after: timedelta | None = None,
    ) -> str:
        """Publish a message for later; when this returns, it is durable, and a subscription gets it.

        >>> scheduler.schedule(b"pay", key="order-7", properties={"kind": "retry"}, after=timedelta(days=1))
        '...:...'

        With an id of the caller's own, the message takes the place of the one that is scheduled under this id, in one
        step: of several callers at once the last one's message is left, and to repeat a call that had no answer is
        safe. An old message that a consumer has in hand already is not withdrawn.

        >>> old = scheduler.schedule(b"wake up", id="alarm", after=timedelta(hours=1))
        >>> new = scheduler.schedule(b"wake up!", id="alarm", after=timedelta(hours=2))
        >>> [one.handle == new for one in scheduler.upcoming(Matching(id="alarm"))]
        [True]

        Args:
            payload: The message.
            id: An id of the caller's own, of 1,000 characters at most, unique in the topic whatever the key. The
                message is published over HTTP then. None for one more message.
            key: The partition key: messages of one key are delivered in order of their times, to one consumer.
            properties: Properties of the message.
            at: When to deliver it. A time that is past means at once.
            after: How long from now to deliver it.

        Returns:
            The handle.

        Raises:
            ValueError: Not exactly one of `at` and `after` is given, `after` is below zero, or a time has no zone.
            TypeError: The payload is not bytes, a property or the id is no text, or a time is none.
            ScheduleRequestError: The time is after the year 9999, or a number before 1990, which may be seconds.
                Nothing was published.
            NoSubscriptionError: No subscription delays, or not the one of this scheduler. Nothing was published.
            ServiceUnavailableError: The web port does not answer. Nothing was published; with an id this is not known,
                and to repeat is safe.
            pulsar.PulsarException: The service cannot be reached, or refuses the message.
        """
        if (at is None) == (after is None):
            raise ValueError("give either at or after: when the message is to be delivered")
        if not isinstance(payload, bytes):
            raise TypeError(f"the payload must be bytes, not {type(payload).__name__}")
        for name, value in (properties or {}).items():
            if not isinstance(name, str) or not isinstance(value, str):
                raise TypeError(f"properties are texts by texts, not {name!r}: {value!r}")
        if not isinstance(id, str | None):
            raise TypeError(f"the id must be a text, not {id!r}")
        deliver_at_ms = delay_ms = None
        if at is not None:
            # The client knows no time before 1970, and the service takes a number before 1990 for seconds.
            deliver_at_ms = max(YEAR_1990_MS, _deliver_at_ms(at))
        else:
            after_ms = _span(after)
            if after_ms < 0:
                raise ValueError(f"after is {after}, which is below zero: give a time that is past as at")
            delay_ms = _schedulable("delayMs", after_ms, TIME_MS_MAX - time.time_ns() // 1_000_000)
        if id is not None:
            self._check_subscription()
            asked = {
                "id": id,
                "payloadBase64": base64.b64encode(payload).decode(),
                "key": key,
                "properties": dict(properties) if properties else None,
                "deliverAtMs": deliver_at_ms,
                "deliverAfterMs": delay_ms,
            }
            given = {name: value for name, value in asked.items() if value is not None}
            handle: str = self._api.post(f"{self._path}/scheduled", given)["messageId"]
            return handle
        when = (
            {"deliver_at": deliver_at_ms} if delay_ms is None else {"deliver_after": timedelta(milliseconds=delay_ms)}
        )
        producer = self._open_producer()
        self._check_subscription()
        message_id = producer.send(
            payload, partition_key=key, properties=dict(properties) if properties else None, **when
        )
        return f"{message_id.ledger_id()}:{message_id.entry_id()}"

    def cancel(self, which: Which, *, is_dry_run: bool = False) -> Outcome:
        """Cancel messages: those that it counts as changed reach no consumer.

        A message that a consumer has in hand is not cancelled; `Outcome.in_hand` counts it.

        >>> handle = scheduler.schedule(b"call", after=timedelta(hours=1))
        >>> scheduler.cancel(handle).changed, scheduler.cancel(handle).changed
        (1, 0)
        >>> scheduler.cancel(Matching(key="nobody"), is_dry_run=True).matched
        0

        Args:
            which: A handle, several, a `Matching`, or `EVERYTHING`.
            is_dry_run: Only return the number of messages.

        Raises:
            ScheduleRequestError: The service refuses, and nothing has changed.
            ServiceUnavailableError: It does not answer; whether it was done is not known, and to repeat is safe.
        """
        return self._change("cancel", "cancelled", which, is_dry_run, {})

    def reschedule(
        self,
        which: Which,
        *,
        at: Time | None = None,
        after: timedelta | None = None,
        shift: timedelta | None = None,
        operation_id: str | None = None,
        is_dry_run: bool = False,
    ) -> Outcome:
        """Give messages another time. Exactly one of the old and the new message is ever delivered.

        >>> old = scheduler.schedule(b"call", after=timedelta(hours=1))
        >>> new = scheduler.reschedule(old, after=timedelta(hours=2)).handles[old]
        >>> scheduler.reschedule(new, shift=timedelta(minutes=-5)).changed
        1

        Args:
            which: A handle, several, a `Matching`, or `EVERYTHING`.
            at: The new time.
            after: The new time, from now.
            shift: How much later than before; below zero for earlier.
            operation_id: The id of a shift that is repeated, as `ServiceUnavailableError.operation_id` gave it: what
                was shifted then is not shifted again. None for a new one.
            is_dry_run: Only return the number of messages.

        Returns:
            The outcome. Its `handles` are the new ones by the old ones, where handles were given.

        Raises:
            ValueError: Not exactly one of `at`, `after` and `shift` is given.
            ScheduleRequestError: The service refuses, and nothing has changed: a time is past.
            ServiceUnavailableError: It does not answer; whether it was done is not known. To repeat it is safe, a shift
                with the error's `operation_id`.
        """
        if sum(given is not None for given in (at, after, shift)) != 1:
            raise ValueError("give one of at, after and shift: when the messages are to be delivered instead")
        if operation_id is not None and shift is None:
            raise ValueError("operation_id is of a shift: every other change can be repeated as it is")
        if at is not None:
            body: Json = {"deliverAtMs": time_ms(at)}
        else:
            body = {"delayMs": span_ms(after)} if after is not None else {"shiftMs": _span(shift)}
        if shift is not None and operation_id is None:
            operation_id = new_operation_id()
        try:
            return self._change("reschedule", "rescheduled", which, is_dry_run, body, operation_id)
        except ServiceUnavailableError as error:
            error.operation_id = operation_id
            raise

    def deliver_now(self, which: Which, *, is_dry_run: bool = False) -> Outcome:
        """Let messages be due at once.

        >>> handle = scheduler.schedule(b"call", after=timedelta(hours=1))
        >>> scheduler.deliver_now(handle).changed
        1

        Args:
            which: A handle, several, a `Matching`, or `EVERYTHING`.
            is_dry_run: Only return the number of messages.

        Raises:
            ScheduleRequestError: The service refuses, and nothing has changed.
            ServiceUnavailableError: It does not answer; whether it was done is not known.
        """
        return self._change("deliver-now", "delivered", which, is_dry_run, {})

    def upcoming(
        self, matching: Matching | None = None, *, limit: int | None = None, has_payload: bool = False
    ) -> Iterator[ScheduledMessage]:
        """Give scheduled messages in order of time, then position; pages are read as they are needed.

        >>> handle = scheduler.schedule(b"stretch", key="ben", after=timedelta(hours=1))
        >>> [(one.key, one.payload) for one in scheduler.upcoming(Matching(key="ben"), has_payload=True)]
        [('ben', b'stretch')]

        Args:
            matching: The conditions that they meet; None for all.
            limit: How many at most; None for all.
            has_payload: Whether the payloads are wanted, too: as they are stored, so that one of a producer with LZ4,
                ZSTD or SNAPPY is compressed still (`payload_compression`).

        Raises:
            ValueError: The limit is below zero.
            TypeError: The conditions are no `Matching`.
            ScheduleRequestError: The service refuses.
            ServiceUnavailableError: It does not answer.
        """
        if limit is not None and limit < 0:
            raise ValueError(f"limit is {limit}, which is below zero")
        return islice(self._listed(self._asked_by(matching), limit, has_payload), limit)

    def count(self, matching: Matching | None = None) -> int:
        """Return how many messages are scheduled. By key or property, the service has to look for them.

        >>> before = scheduler.count()
        >>> handle = scheduler.schedule(b"stretch", after=timedelta(hours=1))
        >>> scheduler.count() - before
        1

        Raises:
            TypeError: The conditions are no `Matching`.
            ScheduleRequestError: The service refuses.
            ServiceUnavailableError: It does not answer.
        """
        asked = {**self._asked_by(matching), "buckets": 1}
        total: int = self._api.look(f"{self._path}/scheduled/histogram", asked)["total"]
        return total

    def _asked_by(self, matching: Matching | None) -> Json:
        if not isinstance(matching, Matching | None):
            raise TypeError(f"{matching!r} is no Matching, which has the conditions")
        return (matching or Matching()).to_json() | self._of_subscription()

    def _listed(self, asked: Json, limit: int | None, has_payload: bool) -> Iterator[ScheduledMessage]:
        for page in self._api.pages(f"{self._path}/scheduled/list", {**asked, "payload": has_payload}, limit=limit):
            yield from (_message_of(one) for one in page["messages"])

    def _change(
        self, what: str, verb: str, which: Which, is_dry_run: bool, body: Json, operation_id: str | None = None
    ) -> Outcome:
        body = body | {"dryRun": is_dry_run} | self._of_subscription()
        outcome = NOTHING
        for selection in _selections(which):
            try:
                answer = self._api.post(f"{self._path}/scheduled/{what}", body | selection, operation_id=operation_id)
            except ScheduleRequestError as error:
                if not error.finds_nothing(selection):
                    raise
                outcome += Outcome(0, 0, 0, len(selection.get("messageIds", ())))
                continue
            outcome += Outcome(
                answer["matched"],
                answer.get(verb, 0),
                answer["alreadyDue"],
                answer["unknown"],
                answer["inHand"],
                answer.get("gone", 0),
                answer.get("alreadyShifted", 0),
                answer.get("ids", {}),
                tuple(answer.get("damaged", ())),
            )
        return outcome

    def _of_subscription(self) -> Json:
        return {} if self._subscription is None else {"subscription": self._subscription}

    def _check_subscription(self) -> None:
        """Make sure that a subscription gets what is published now, when it is due."""
        with self._subscription_lock:
            if time.monotonic() < self._subscription_trusted_until_s:
                return
            name = self._subscription
            found = self._api.get(f"{self._path}/subscriptions")["subscriptions"]
            there = [one for one in found if name in (None, one["name"])]
            if name is not None and not there:
                self._make_subscription(name)
            elif not any(one["delays"] for one in there):
                raise NoSubscriptionError(_no_subscription(self.topic, there))
            self._subscription_trusted_until_s = time.monotonic() + SUBSCRIPTION_TRUSTED_S

    def _make_subscription(self, name: str) -> None:
        import pulsar

        with self._lock:
            consumer = self._open_client().subscribe(
                self.topic,
                name,
                consumer_type=pulsar.ConsumerType.Shared,
                initial_position=pulsar.InitialPosition.Latest,
                # It asks for no message.
                receiver_queue_size=0,
            )
        consumer.close()

    def _open_producer(self) -> "pulsar.Producer":
        with self._lock:
            if self._producer is None:
                self._producer = self._open_client().create_producer(self.topic)
            return self._producer

    def _open_client(self) -> "pulsar.Client":
        """Return the client; the caller holds the lock."""
        if self._client is None:
            self._client = new_client(self._service_url, token=self._api.token, tls_files=self._api.tls_files)
        return self._client


def _no_subscription(topic: str, there: Sequence[Json]) -> str:
    why = "; ".join(f"{one['name']} is {one['type']}, which does not delay" for one in there)
    return (
        f"no subscription of {topic} delays{f' ({why})' if why else ''}, so no consumer would get the message when "
        "it is due: it was not published. Subscribe as Shared or Key_Shared first, or give "
        "Scheduler(subscription=...), which makes one that is missing"
    )


def _deliver_at_ms(at: Time) -> int:
    """Return a delivery time; refuse a number that may be seconds: the message would be due at once."""
    deliver_at_ms = time_ms(at)
    if isinstance(at, int) and may_be_seconds(deliver_at_ms):
        advice = "Write milliseconds since 1970, or give a datetime; a time that is past means at once"
        raise ScheduleRequestError(400, seconds_refusal(deliver_at_ms), field="deliverAtMs", advice=advice)
    return _schedulable("deliverAtMs", deliver_at_ms, TIME_MS_MAX)


def _schedulable(field: str, value_ms: int, max_ms: int) -> int:
    """Return a time or delay; refuse one that is too late, as the service does where a message is rescheduled."""
    if value_ms > max_ms:
        error = f"{value_ms} is outside of what can be scheduled"
        raise ScheduleRequestError(400, error, field=field, advice=f"Write 0 to {max_ms} milliseconds")
    return value_ms


def _span(span: timedelta | None) -> int:
    assert span is not None
    return span_ms(span)


def _selections(which: Which) -> Iterator[Json]:
    """Yield the fields that select messages, for one request after the other.

    Raises:
        ValueError: The selection has no condition, which must not mean all messages.
        TypeError: A handle is no text.
    """
    if isinstance(which, Everything):
        yield {"all": True}
        return
    if isinstance(which, Matching):
        selection = which.to_json()
        if not selection:
            raise ValueError("a Matching without a condition means nothing: give EVERYTHING for all messages")
        yield selection
        return
    # Bytes are iterable, too: each byte would be a handle.
    handles: list[object] = [which] if isinstance(which, str | bytes) or which is None else list(which)
    for handle in handles:
        if not isinstance(handle, str):
            raise TypeError(f"{handle!r} selects nothing: give a handle (text), several, a Matching, or EVERYTHING")
    for first in range(0, len(handles), HANDLES_PER_REQUEST):
        yield {"messageIds": handles[first : first + HANDLES_PER_REQUEST]}


def _message_of(json: Json) -> ScheduledMessage:
    return ScheduledMessage(
        handle=json["messageId"],
        deliver_at_ms=json["deliverAtMs"],
        publish_time_ms=json["publishTimeMs"],
        key=json["key"],
        properties=json["properties"],
        size_bytes=json["sizeBytes"],
        producer_name=json["producerName"],
        payload=base64.b64decode(json["payload"]) if "payload" in json else None,
        payload_compression=json.get("payloadCompression"),
    )
