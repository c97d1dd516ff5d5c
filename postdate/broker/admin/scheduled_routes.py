"""The HTTP interface of scheduled messages, below `/postdate/v1`, in JSON; `openapi` is its document.

    GET  /topics
    GET  /topics/{tenant}/{namespace}/{topic}                       one of them
    GET  /topics/{tenant}/{namespace}/{topic}/subscriptions         which it has, and whether they delay
    GET  /topics/{tenant}/{namespace}/{topic}/scheduled             scheduled messages, in order of time
    GET  /topics/{tenant}/{namespace}/{topic}/scheduled/histogram
    POST /topics/{tenant}/{namespace}/{topic}/scheduled/list        the same two, with what is asked for as a JSON body
    POST /topics/{tenant}/{namespace}/{topic}/scheduled/histogram
    POST /topics/{tenant}/{namespace}/{topic}/scheduled/cancel
    POST /topics/{tenant}/{namespace}/{topic}/scheduled/reschedule
    POST /topics/{tenant}/{namespace}/{topic}/scheduled/deliver-now
    POST /topics/{tenant}/{namespace}/{topic}/pause, .../resume
    GET, POST /topics/{tenant}/{namespace}/{topic}/explain
    POST /topics/{tenant}/{namespace}/{topic}/keys                  the consumer of a key, and what the key waits for
    GET  /operations/{operation}                                    how far one is, by its own `Operation-Id`

A key and properties may be longer than aiohttp lets a query be (8,190 bytes), so a look has a body form, with the same
fields. Errors are `{"error": ..., "field": ..., "advice": ...}`. Requests are parsed in `scheduled_requests` and
carried out in `postdate.broker.scheduled`. Each needs its permission (`postdate.broker.admin.web_access`).
"""

import json
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass
from typing import Final, Protocol

import numpy as np
from aiohttp import hdrs, web
from aiohttp.typedefs import Handler

from managed_ledger.errors import AppendRefusedError, LedgerError
from managed_ledger.position import Position
from managed_ledger.replacing import Entries
from managed_ledger.value_types import Json
from postdate.broker.admin import scheduled_requests as requests
from postdate.broker.admin.openapi import document
from postdate.broker.admin.request_bodies import end_behind, read_body
from postdate.broker.admin.scheduled_requests import RequestError
from postdate.broker.admin.streaming import stream_text
from postdate.broker.admin.topic_stats import key_status
from postdate.broker.configuration.config import BrokerConfig
from postdate.broker.errors import BrokerError
from postdate.broker.scheduled.catalog import ScheduleCatalog
from postdate.broker.scheduled.explanation import explain_key, explain_message
from postdate.broker.scheduled.filtered_counts import histogram_of
from postdate.broker.scheduled.listing import list_messages, subscriptions_of, topic_summary, undelayed
from postdate.broker.scheduled.messages import both
from postdate.broker.scheduled.operations import MOVED_TOLD_MAX, ChangeOutcome, Operations, Progress, early_ms_of
from postdate.broker.scheduled.page_token import PageToken
from postdate.broker.scheduled.selection import Rows
from postdate.broker.scheduled.topic_schedule import TooManyRowsError, TopicSchedule
from postdate.broker.slices import in_slices
from postdate.broker.topics.change_order import ChangeUnderWayError
from postdate.broker.topics.pause import NOT_PAUSED, PauseState
from postdate.broker.topics.subscription import Subscription
from postdate.broker.topics.topic import Topic
from postdate.broker.topics.topic_name import DOMAIN_PREFIX, TopicName

PREFIX: Final = "/postdate/v1"
_TOPIC: Final = PREFIX + "/topics/{tenant}/{namespace}/{topic}"
_TOPICS: Final = PREFIX + "/topics"
_SUBSCRIPTIONS: Final = f"{_TOPIC}/subscriptions"
_SCHEDULED: Final = f"{_TOPIC}/scheduled"
_LIST: Final = f"{_SCHEDULED}/list"
_HISTOGRAM: Final = f"{_SCHEDULED}/histogram"
_CANCEL: Final = f"{_SCHEDULED}/cancel"
_RESCHEDULE: Final = f"{_SCHEDULED}/reschedule"
_DELIVER_NOW: Final = f"{_SCHEDULED}/deliver-now"
_EXPLAIN: Final = f"{_TOPIC}/explain"
_KEYS: Final = f"{_TOPIC}/keys"
_OPERATION: Final = f"{PREFIX}/operations/{{operation}}"
_OPENAPI: Final = f"{PREFIX}/openapi.json"

SCHEDULED_READ_PATHS: Final = frozenset({_TOPIC, _SUBSCRIPTIONS, _HISTOGRAM})
"""Endpoints for callers that may produce to the topic or consume from it: counts and times."""
SCHEDULED_READ_BODY_PATHS: Final = frozenset({_HISTOGRAM, _KEYS})
"""The same for POSTs, which change nothing."""
SCHEDULED_CONTENT_PATHS: Final = frozenset({_SCHEDULED, _EXPLAIN})
"""Endpoints for callers that may consume from the topic: they give keys, properties and payloads."""
SCHEDULED_CONTENT_BODY_PATHS: Final = frozenset({_LIST, _EXPLAIN})
"""The same for POSTs, which change nothing."""
SCHEDULED_CANCEL_PATHS: Final = frozenset({_CANCEL})
"""Changes for callers that may consume from the topic: a cancelled message is an acknowledged one."""
SCHEDULED_MOVE_PATHS: Final = frozenset({_RESCHEDULE, _DELIVER_NOW})
"""Changes for callers that may consume from the topic and produce to it: an acknowledgement and a copy."""
SCHEDULED_KNOWN_PATHS: Final = frozenset({_TOPICS, _OPENAPI, _OPERATION})
"""Endpoints for every authenticated caller; the answers are about topics that the caller may see."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller of a request."""

    may_see: Callable[[TopicName], bool]
    """Whether it may see that there is a topic, and how much is scheduled."""
    may_read: Callable[[TopicName], bool]
    """Whether it may also see keys, properties and payloads."""


CALLER: Final = web.RequestKey("caller", Caller)
"""Set by the access middleware; without it the caller may see everything."""

_CONTENT_FILTERS: Final = frozenset({"key", "keyBase64", "property"})
"""Fields by which a count, too, tells keys and properties."""
_SELECTION: Final = ("subscription", "from", "until", "key", "keyBase64", "property")
_LIST_FIELDS: Final = (*_SELECTION, "limit", "after", "payload")
_HISTOGRAM_FIELDS: Final = (*_SELECTION, "buckets")
_EXPLAIN_FIELDS: Final = ("subscription", "messageId", "key", "keyBase64")
_KEYS_FIELDS: Final = ("subscription", "key", "keyBase64")

_OPERATION_ID: Final = "Operation-Id"
_OPERATIONS_MAX: Final = 100
_NO_KEY_ADVICE: Final = (
    "Acknowledged, cancelled and expired messages are not found by key, and those of a batch by the batch's key alone: "
    "explain them by messageId (--id)"
)
_NOTHING_ADVICE: Final = "GET .../scheduled lists the scheduled messages; delivered and cancelled ones are gone"


class ScheduleService(Protocol):
    """The part of the service that these endpoints call."""

    @property
    def config(self) -> BrokerConfig:
        """How long a message lives, and whether it may come a tick early."""

    @property
    def catalog(self) -> ScheduleCatalog:
        """The columns of all topics."""

    def now_ms(self) -> int:
        """Return the wall clock in milliseconds, against which times of delivery are compared."""

    async def existing_topic(self, name: TopicName) -> Topic | None:
        """Return a topic, opened, None if it is missing."""

    def looked_at(self, name: TopicName) -> AbstractAsyncContextManager[Topic | None]:
        """Open a topic for as long as the context lasts, None if it is missing; that is no use of it."""

    def topic_names(self) -> list[str]:
        """List all topics, open or not, by full name and in order."""


class _Operation:
    """One call that changes something, while it runs and for a while after; as a context it notes its end.

    Args:
        kind: The change.
        topic: The topic.
        started_ms: The time when it began.
    """

    __slots__ = ("error", "is_finished", "kind", "progress", "started_ms", "topic")

    def __init__(self, kind: str, topic: TopicName, started_ms: int) -> None:
        self.kind = kind
        self.topic = topic
        self.started_ms = started_ms
        self.progress = Progress()
        self.is_finished = False
        self.error: str | None = None

    def __enter__(self) -> Progress:
        return self.progress

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self.is_finished = True
        if isinstance(error, Exception):
            self.error = str(error)


def scheduled_routes(service: ScheduleService) -> list[web.RouteDef]:
    """Return the routes, to be given to `start_web`."""
    routes = _Routes(service)
    post: dict[str, Callable[[web.Request], Awaitable[Json | web.StreamResponse]]] = {
        _CANCEL: routes.cancel,
        _RESCHEDULE: routes.reschedule,
        _DELIVER_NOW: routes.deliver_now,
        f"{_TOPIC}/pause": routes.pause,
        f"{_TOPIC}/resume": routes.resume,
        _LIST: routes.scheduled,
        _HISTOGRAM: routes.histogram,
        _EXPLAIN: routes.explain,
        _KEYS: routes.keys,
    }
    get: dict[str, Callable[[web.Request], Awaitable[Json | web.StreamResponse]]] = {
        _TOPICS: routes.topics,
        _TOPIC: routes.topic,
        _SUBSCRIPTIONS: routes.subscriptions,
        _SCHEDULED: routes.scheduled,
        _HISTOGRAM: routes.histogram,
        _EXPLAIN: routes.explain,
        _OPERATION: routes.operation,
        _OPENAPI: routes.openapi,
    }
    # Paths are tried in this order. A change of one message is the most frequent request, and the smallest.
    return [
        *(web.post(path, _answering(handler)) for path, handler in post.items()),
        *(web.get(path, _answering(handler)) for path, handler in get.items()),
    ]


async def _listed(topics: list[bytes], end: bytes) -> AsyncGenerator[bytes, None]:
    """Write the list in slices: that of 10,000 topics is 4 MB."""
    yield b'{"topics": ['
    async for number in in_slices(range(len(topics))):
        yield b", " + topics[number] if number else topics[number]
    yield b"], " + end


def _answering(handler: Callable[[web.Request], Awaitable[Json | web.StreamResponse]]) -> Handler:
    async def answer(request: web.Request) -> web.StreamResponse:
        try:
            found = await handler(request)
            return found if isinstance(found, web.StreamResponse) else web.json_response(found)
        except RequestError as error:
            return web.json_response(error.to_json(), status=error.status)
        except TooManyRowsError as error:
            advice = "Narrow from and until and repeat, or use the jobs on Spark with the service stopped"
            refused = RequestError(413, str(error), field=None, advice=advice)
            return web.json_response(refused.to_json(), status=413)
        except ChangeUnderWayError as error:
            advice = "Repeat it when that one has ended, or name messages by ids that it does not mean"
            refused = RequestError(409, f"Nothing has changed: {error}", field=None, advice=advice)
            return web.json_response(refused.to_json(), status=409)
        except AppendRefusedError as error:
            refused = RequestError(507, str(error), field=None, advice="Give the log more room, and repeat")
            return web.json_response(refused.to_json(), status=507)
        except LedgerError as error:
            advice = "See /health and the service's log; to repeat the request is safe"
            refused = RequestError(503, f"The log cannot be used now: {error}", field=None, advice=advice)
            return web.json_response(refused.to_json(), status=503)

    return answer


class _Routes:
    """Answers requests, and remembers the operations that run or have ended lately, whose progress can be asked for."""

    def __init__(self, service: ScheduleService) -> None:
        self._service = service
        self._operations: OrderedDict[str, _Operation] = OrderedDict()

    async def openapi(self, request: web.Request) -> Json:
        """Return the OpenAPI description of these endpoints."""
        del request
        return document()

    async def topics(self, request: web.Request) -> web.StreamResponse:
        """The topics that the caller may see, all of them or a page."""
        query = _query(request, ("contains", "after", "limit"))
        limit = requests.parse_whole("limit", query["limit"], 1, requests.LIMIT_MAX) if "limit" in query else None
        contained, after = query.get("contains", "").lower(), query.get("after", "")
        caller = request.get(CALLER)
        found: list[bytes] = []
        following, total, last = None, 0, ""
        async for full_name in in_slices(self._service.topic_names()):
            shown = full_name.removeprefix(DOMAIN_PREFIX)
            if contained not in shown.lower():
                continue
            name = TopicName.parse(full_name)
            if caller is not None and not caller.may_see(name):
                continue
            total += 1
            if shown <= after:
                continue
            if limit is not None and len(found) == limit:
                following = last
                continue
            async with self._service.looked_at(name) as topic:
                if topic is None:
                    # It was deleted meanwhile.
                    continue
                summary = await topic_summary(topic, self._service.catalog, self._service.now_ms)
            # With thousands of topics, the text of all at once would take as long as a turn of the loop may not.
            found.append(json.dumps(summary).encode())
            last = shown
        end = json.dumps({"next": following, "total": total}).removeprefix("{").encode()
        return await stream_text(request, _listed(found, end))

    async def topic(self, request: web.Request) -> Json:
        """One topic."""
        requests.check_fields(request.query, (), "parameter")
        return await topic_summary(await self._topic(request), self._service.catalog, self._service.now_ms)

    async def subscriptions(self, request: web.Request) -> Json:
        """The subscriptions of a topic; cheap, as nothing is counted."""
        requests.check_fields(request.query, (), "parameter")
        return {"subscriptions": subscriptions_of(await self._topic(request))}

    async def scheduled(self, request: web.Request) -> Json:
        """A page of scheduled messages."""
        query = await _asked(request, _LIST_FIELDS)
        selector = requests.parse_conditions(query)
        limit = requests.parse_whole("limit", query.get("limit", requests.LIMIT_DEFAULT), 1, requests.LIMIT_MAX)
        after = _after(query["after"]) if "after" in query else None
        has_payload = requests.parse_bool("payload", query.get("payload", False))
        schedule = self._schedule(await self._topic(request), requests.parse_subscription(query))
        messages, following = await list_messages(schedule, selector, limit=limit, after=after, has_payload=has_payload)
        return {"messages": messages, "next": None if following is None else str(following)}

    async def histogram(self, request: web.Request) -> Json:
        """The number of scheduled messages per span of time."""
        query = await _asked(request, _HISTOGRAM_FIELDS)
        caller = request.get(CALLER)
        if caller is not None and not _CONTENT_FILTERS.isdisjoint(query) and not caller.may_read(_topic_name(request)):
            raise web.HTTPForbidden(reason="The role is not allowed to count by key or property")
        selector = requests.parse_conditions(query)
        buckets = requests.parse_whole(
            "buckets", query.get("buckets", requests.BUCKETS_DEFAULT), 1, requests.BUCKETS_MAX
        )
        topic, name = await self._topic(request), requests.parse_subscription(query)
        is_of_all = selector.filter.is_trivial
        schedule = self._schedule(topic, name, has_in_hand=not is_of_all)
        if is_of_all:
            found = await schedule.histogram(selector.from_ms, selector.until_ms, buckets)
        else:
            found = await histogram_of(schedule, selector, buckets, self._service.now_ms())
        counts = found.counts.tolist()
        return {
            "total": found.totals.count,
            "delayed": found.totals.delayed,
            "overdue": found.totals.overdue,
            "inHand": found.totals.in_hand,
            **both("nextDue", found.totals.next_deliver_at_ms),
            **both("lastDue", found.totals.last_deliver_at_ms),
            "buckets": [
                {"fromMs": begin, "untilMs": end, "count": count}
                for begin, end, count in zip(found.edges[:-1], found.edges[1:], counts, strict=True)
            ],
            "undelayed": undelayed(_named(topic, name)),
        }

    async def cancel(self, request: web.Request) -> Json:
        """Cancel messages: no consumer gets them any more."""
        body = await _body(request, requests.SELECTION_FIELDS)
        selector, is_dry_run = requests.parse_selector(body), requests.parse_bool("dryRun", body.get("dryRun", False))
        topic = await self._topic(request)
        with self._begun(request, "cancel", topic) as progress:
            operations = self._operations_on(topic, body, progress)
            outcome = await (operations.look_at_cancel if is_dry_run else operations.cancel)(selector)
            return _outcome(outcome, body, None if is_dry_run else "cancelled")

    async def reschedule(self, request: web.Request) -> Json:
        """Give messages another delivery time."""
        body = await _body(request, requests.RESCHEDULE_FIELDS)
        new_time = requests.parse_new_time(body, self._service.now_ms())
        return await self._move(request, body, "reschedule", "rescheduled", new_time)

    async def deliver_now(self, request: web.Request) -> Json:
        """Make messages due at once."""
        body = await _body(request, requests.SELECTION_FIELDS)
        return await self._move(request, body, "deliver-now", "delivered", None)

    async def pause(self, request: web.Request) -> Json:
        """Pause delivery: due messages are held."""
        body = await _body(request, ("subscription",), is_optional=True)
        topic, name = await self._topic(request), requests.parse_subscription(body)
        if not topic.subscriptions:
            advice = "Pause it once it has a subscription; later ones then join the pause"
            raise RequestError(404, "The topic has no subscription to pause", field="subscription", advice=advice)
        # A subscription that is made while another's pause is being stored is found by the next round.
        while to_pause := [one for one in _named(topic, name) if not _is_paused(one, is_of_topic=name is None)]:
            for subscription in to_pause:
                since_ms = subscription.pause.paused_since_ms
                since_ms = self._service.now_ms() if since_ms is None else since_ms
                await subscription.set_pause(PauseState(since_ms, is_of_topic=name is None))
        return _pauses(topic, name)

    async def resume(self, request: web.Request) -> Json:
        """Resume delivery: held messages go out at once, or at a limited rate."""
        body = await _body(request, ("subscription", "ratePerSecond"), is_optional=True)
        rate = requests.parse_rate(body)
        topic = await self._topic(request)
        for subscription in _named(topic, requests.parse_subscription(body)):
            if subscription.pause != NOT_PAUSED:
                await subscription.set_pause(PauseState(rate_per_second=rate))
        return _pauses(topic, requests.parse_subscription(body))

    async def explain(self, request: web.Request) -> Json:
        """The state of a message, or of the messages of a key."""
        query = await _asked(request, _EXPLAIN_FIELDS)
        key = requests.parse_key(query)
        if ("messageId" in query) == (key is not None):
            advice = "Give messageId for one message, or key for the messages of a key"
            raise RequestError(400, "either messageId or key must be given", field="messageId", advice=advice)
        topic = await self._topic(request)
        schedule = self._schedule(topic, requests.parse_subscription(query), has_all_types=True, has_in_hand=True)
        ttl_ms = self._service.config.ttl_ms
        if key is None:
            message_id = requests.parse_message_id("messageId", query["messageId"])
            found = await explain_message(schedule, message_id, now_ms=self._service.now_ms(), ttl_ms=ttl_ms)
            if found is None:
                raise RequestError(
                    404,
                    f"{topic.name} has no message {message_id}",
                    field="messageId",
                    advice="It never was, or every subscription has acknowledged it and its ledger was trimmed",
                )
            return found
        of_key = await explain_key(schedule, key, now_ms=self._service.now_ms(), ttl_ms=ttl_ms)
        if not of_key.answer["messages"]:
            error = f"{topic.name} has no unacknowledged message of this key"
            if not of_key.is_whole:
                error = (
                    f"{topic.name} has no scheduled message of this key, "
                    f"and no other one among its first {of_key.searched} unacknowledged entries"
                )
            raise RequestError(404, error, field="key", advice=_NO_KEY_ADVICE)
        return of_key.answer

    async def keys(self, request: web.Request) -> Json:
        """The consumer of a key of a Key_Shared subscription, and what the key waits for."""
        asked = await _body(request, _KEYS_FIELDS)
        key, name = requests.parse_key(asked), requests.parse_subscription(asked)
        for field, value in (("key", key), ("subscription", name)):
            if value is None:
                advice = "Give the subscription, and key or keyBase64"
                raise RequestError(400, f"{field} must be given", field=field, advice=advice)
        assert key is not None
        (subscription,) = _named(await self._topic(request), name)
        status = None if subscription.dispatcher is None else subscription.dispatcher.key_status(key)
        if status is None:
            advice = "Ask once a Key_Shared consumer is connected"
            error = f"Subscription {name} has no Key_Shared consumers, so keys have no owners"
            raise RequestError(409, error, field="subscription", advice=advice)
        return key_status(key, status)

    async def operation(self, request: web.Request) -> Json:
        """The progress of an operation."""
        name = request.match_info["operation"]
        operation = self._operations.get(name)
        caller = request.get(CALLER)
        if operation is None or (caller is not None and not caller.may_see(operation.topic)):
            advice = f"Send the header {_OPERATION_ID} with a request, and ask by it while that is answered"
            raise RequestError(404, f"There is no operation {name}", field="operation", advice=advice)
        return {
            "id": name,
            "kind": operation.kind,
            "topic": _short(operation.topic),
            **both("started", operation.started_ms),
            **asdict(operation.progress),
            "finished": operation.is_finished,
            "error": operation.error,
        }

    async def _move(
        self, request: web.Request, body: Json, kind: str, verb: str, new_time: requests.NewTime | None
    ) -> Json:
        selector, is_dry_run = requests.parse_selector(body), requests.parse_bool("dryRun", body.get("dryRun", False))
        topic = await self._topic(request)
        with self._begun(request, kind, topic) as progress:
            operations = self._operations_on(topic, body, progress)

            def check(movable: Rows) -> None:
                if new_time is not None:
                    self._check_new_times(topic, movable, new_time)

            if is_dry_run:
                return _outcome(await operations.look_at_move(selector, check), body, None)
            now_ms = self._service.now_ms()
            outcome = await operations.move(
                selector,
                new_time.all_of if new_time is not None else lambda deliver_at_ms: np.full_like(deliver_at_ms, now_ms),
                kind=kind,
                check=check,
                shifted_by=_shifted_by(request, new_time),
            )
            answer = _outcome(outcome, body, verb)
            if selector.message_ids is not None:
                # Each as it was named, and the other chunks of its message.
                moved = outcome.moved
                asked = [one for one in dict.fromkeys(selector.message_ids) if one in moved]
                answer["ids"] = {str(old): str(moved[old]) for old in [*asked, *(moved.keys() - set(asked))]}
            return answer

    def _check_new_times(self, topic: Topic, movable: Rows, new_time: requests.NewTime) -> None:
        if not len(movable):
            return
        now_ms = self._service.now_ms()
        first, last = (new_time.of(int(movable.deliver_at_ms[row])) for row in (0, -1))
        if new_time.deliver_at_ms is None and first < now_ms:
            advice = "Shift by less, or narrow from and until; deliver what is to come at once with deliver-now"
            raise RequestError(400, "some of them would be due in the past", field=new_time.field, advice=advice)
        if last > requests.TIME_MS_MAX:
            raise RequestError(
                400, "some of them would be due after the year 9999", field=new_time.field, advice="Shift by less"
            )
        if topic.delay_ms_max and last - now_ms > topic.delay_ms_max:
            advice = f"Choose a time within {topic.delay_ms_max} milliseconds from now, or raise the policy's limit"
            raise RequestError(
                400, "that is longer than the topic's longest delay", field=new_time.field, advice=advice
            )

    def _begun(self, request: web.Request, kind: str, topic: Topic) -> _Operation:
        """Begin an operation, which is known by its `Operation-Id` for a while."""
        operation = _Operation(kind, topic.name, self._service.now_ms())
        name = request.headers.get(_OPERATION_ID)
        if name:
            self._operations[name] = operation
            while len(self._operations) > _OPERATIONS_MAX:
                self._operations.popitem(last=False)
        return operation

    def _operations_on(self, topic: Topic, body: Json, progress: Progress) -> Operations:
        name = requests.parse_subscription(body)

        def new_schedule() -> TopicSchedule:
            return self._schedule(topic, name, is_to_change=True, has_in_hand=True)

        # An unknown subscription is refused before the change has its turn.
        new_schedule()
        early_ms = early_ms_of(topic, is_strict=self._service.config.tracker.is_deliver_at_time_strict)
        return Operations(
            topic,
            new_schedule,
            now_ms=self._service.now_ms,
            early_ms=early_ms,
            progress=progress,
            is_for_all=name is None,
        )

    async def _topic(self, request: web.Request) -> Topic:
        name = _topic_name(request)
        topic = await self._service.existing_topic(name)
        if topic is None:
            advice = f"GET {_TOPICS} (postdate topics) lists those that there are"
            raise RequestError(404, f"There is no topic {_short(name)}", field="topic", advice=advice)
        return topic

    def _schedule(
        self,
        topic: Topic,
        name: str | None,
        *,
        is_to_change: bool = False,
        has_all_types: bool = False,
        has_in_hand: bool = False,
    ) -> TopicSchedule:
        """Return the schedule for a subscription, or for all that delay."""
        chosen = _named(topic, name)
        delaying = chosen if has_all_types else [one for one in chosen if one.has_delays]
        if is_to_change and name is not None and not delaying:
            advice = "Only Shared and Key_Shared subscriptions delay; this one gets everything at once"
            raise RequestError(409, f"Subscription {name} delays nothing", field="subscription", advice=advice)
        return TopicSchedule(topic, self._service.catalog, delaying, self._service.now_ms, has_in_hand=has_in_hand)


def _shifted_by(request: web.Request, new_time: requests.NewTime | None) -> str | None:
    """Return what the copies of a shift are marked with, where it has an id: repeated, it must move no copy again.

    All other changes can be repeated as they are. The shift is part of the mark, as an id may be used again.
    """
    operation_id = request.headers.get(_OPERATION_ID)
    if not operation_id or new_time is None or new_time.field != "shiftMs":
        return None
    return f"{operation_id} {new_time.shift_ms}"


def _outcome(outcome: ChangeOutcome, body: Json, verb: str | None) -> Json:
    """Return an outcome as JSON; refuse one of nothing."""
    if not outcome.matched and not outcome.damaged:
        raise _matches_nothing(body)
    answer: Json = {
        "matched": outcome.matched,
        "alreadyDue": outcome.already_due,
        "inHand": outcome.in_hand,
        "unknown": outcome.unknown,
    }
    if outcome.damaged:
        answer |= {"damaged": _positions(outcome.damaged)[:MOVED_TOLD_MAX], "damagedCount": outcome.damaged_count}
    if verb is not None:
        answer |= {"gone": outcome.gone, verb: outcome.changed}
    if verb == "rescheduled":
        answer["alreadyShifted"] = outcome.already_shifted
    return answer


def _positions(entries: Entries) -> list[str]:
    return [str(Position(ledger_id, at)) for ledger_id, ids in sorted(entries.items()) for at in ids]


def _matches_nothing(body: Json) -> RequestError:
    given = next(name for name in requests.SELECTORS if name in body)
    error = "none of these ids is scheduled" if given == "messageIds" else "nothing that is scheduled is meant"
    return RequestError(404, error, field=given, advice=_NOTHING_ADVICE)


def _named(topic: Topic, name: str | None) -> list[Subscription]:
    if name is None:
        return list(topic.subscriptions.values())
    if name not in topic.subscriptions:
        there = ", ".join(sorted(topic.subscriptions)) or "none"
        advice = f"The topic's subscriptions: {there}"
        raise RequestError(404, f"There is no subscription {name}", field="subscription", advice=advice)
    return [topic.subscriptions[name]]


def _is_paused(subscription: Subscription, *, is_of_topic: bool) -> bool:
    """Whether a subscription is paused; where a pause of the whole topic is wanted, whether by such a one."""
    pause = subscription.pause
    return pause.is_paused and (pause.is_of_topic or not is_of_topic)


def _pauses(topic: Topic, name: str | None) -> Json:
    return {
        "subscriptions": [
            {
                "name": one.name,
                "paused": one.pause.is_paused,
                **both("pausedSince", one.pause.paused_since_ms),
                "ratePerSecond": one.pause.rate_per_second,
            }
            for one in _named(topic, name)
        ]
    }


def _topic_name(request: web.Request) -> TopicName:
    parts = request.match_info
    try:
        return TopicName.of_parts(parts["tenant"], parts["namespace"], parts["topic"])
    except BrokerError as error:
        raise RequestError(404, str(error), field="topic", advice="Write tenant/namespace/topic") from error


def _after(text: object) -> PageToken:
    try:
        return PageToken.parse(str(text))
    except ValueError as error:
        advice = "Give what next gave, or leave it out to begin anew"
        raise RequestError(400, f"after cannot be used: {error}", field="after", advice=advice) from error


_NUMBERS: Final = ("from", "until", "limit", "buckets")
"""Parameters of queries that are numbers, or may be."""


def _query(request: web.Request, known: tuple[str, ...]) -> Json:
    requests.check_fields(request.query, known, "parameter")
    found: Json = {}
    for name in request.query:
        values = request.query.getall(name)
        if name == "property":
            found[name] = values
        elif len(values) > 1:
            raise RequestError(400, f"{name} is given {len(values)} times", field=name, advice="Give it once")
        else:
            found[name] = requests.number_of_query(values[0]) if name in _NUMBERS else values[0]
    return found


async def _asked(request: web.Request, known: tuple[str, ...]) -> Json:
    """Return what a look asks for: the fields of a POST's body, or the parameters of a query."""
    return await _body(request, known) if request.method == hdrs.METH_POST else _query(request, known)


async def _body(request: web.Request, known: tuple[str, ...] | frozenset[str], *, is_optional: bool = False) -> Json:
    if request.query_string:
        requests.check_fields(request.query, (), "parameter")
    try:
        data = await read_body(request)
    except web.HTTPRequestEntityTooLarge as error:
        advice = f"Give up to {requests.MESSAGE_IDS_MAX} ids at a time, or say which are meant by key, property or time"
        raise RequestError(413, f"The body is too large: {error.text}", field=None, advice=advice) from error
    except web.RequestPayloadError as error:
        # Nothing behind such a body can be read: aiohttp would log a failure if it tried, and the connection ends.
        end_behind(request)
        advice = "Send the body as it is and without Content-Encoding, or encoded as that header says"
        raise RequestError(400, "The body cannot be decoded", field="Content-Encoding", advice=advice) from error
    if is_optional and not data:
        return {}
    if request.content_type != "application/json":
        advice = "Send a JSON object with Content-Type: application/json"
        raise RequestError(415, f"The body is {request.content_type}", field="Content-Type", advice=advice)
    body = requests.parse_body(data)
    requests.check_fields(body, known, "field")
    return body


def _short(name: TopicName) -> str:
    return f"{name.namespace_name}/{name.local_name}"
