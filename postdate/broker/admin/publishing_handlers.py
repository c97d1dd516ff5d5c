"""The handler that publishes: one message as a JSON object, or one for each line of JSON.

All lines are looked at before anything is published, so a refusal, which names its line, means that nothing was.
"""

import base64
import binascii
from collections.abc import Sequence
from typing import Annotated, Final

from msgspec import UNSET, Meta, UnsetType, field

from managed_ledger.positions.position import Position
from postdate.broker.admin.endpoint import LINES, Call, objects_of
from postdate.broker.admin.refusal import RefusalError
from postdate.broker.admin.scheduled_handlers import operations_of
from postdate.broker.admin.scheduled_requests import TIME_ADVICE, TIME_MS_MAX, Asked, OwnId, Time, time_ms_of
from postdate.broker.admin.web_service import Served
from postdate.broker.scheduled.answers import PublishedIds
from postdate.broker.scheduled.operations import Progress
from postdate.broker.scheduled.publishing import NewMessage, UnpublishableError
from postdate.broker.topics.topic import Topic
from postdate.command_line.milliseconds import YEAR_1990_MS

_MESSAGES_MAX: Final = 1_000
"""Messages in one request: they are appended in one turn of the event loop, some milliseconds."""
BODY_PER_MESSAGE: Final = 2
"""How much larger a body may be than the largest message: base64 takes a third more, and JSON escapes some letters."""


class Publish(Asked, kw_only=True):
    """A message to publish."""

    payload: Annotated[str, Meta(description="Text; either this or payloadBase64")] | UnsetType = UNSET
    payload_base64: Annotated[str, Meta(description="Any bytes")] | UnsetType = UNSET
    key: (
        Annotated[str, Meta(min_length=1, description="The partition key: messages of one key keep their order")]
        | UnsetType
    ) = UNSET
    properties: dict[str, str] = field(default_factory=dict)
    id: OwnId = UNSET
    deliver_at_ms: (
        Annotated[Time, Meta(description="When; a time that is past means at once", extra={"advice": TIME_ADVICE})]
        | UnsetType
    ) = UNSET
    deliver_after_ms: (
        Annotated[int, Meta(ge=0, le=TIME_MS_MAX, description="From now; with neither, it is delivered at once")]
        | UnsetType
    ) = UNSET
    subscription: (
        Annotated[
            str,
            Meta(
                min_length=1,
                description="One that is to get it: a missing one is made, so is the topic; needs the grant consume",
            ),
        ]
        | UnsetType
    ) = UNSET


async def publish(served: Served, call: Call[None]) -> PublishedIds:
    """Publish a message, or a message for each line of application/x-ndjson: all or none; durable when it is answered.

    With an id it takes the place of what is scheduled under this id. 409 where no subscription would get it when it is
    due.
    """
    now_ms = served.service.now_ms()
    subscriptions: dict[str, None] = {}
    own_ids: set[str] = set()

    def message_of(asked: Publish) -> NewMessage:
        if asked.subscription is not UNSET:
            subscriptions[asked.subscription] = None
        own_id = None if asked.id is UNSET else asked.id
        if own_id is not None:
            if own_id in own_ids:
                advice = "Give each id once in a request: one message of an id is scheduled at a time"
                raise RefusalError(400, f"the id {own_id!r} comes twice", field="id", advice=advice)
            own_ids.add(own_id)
        return NewMessage(
            _payload_of(asked),
            asked.key or None,
            asked.properties,
            deliver_at_ms=_deliver_at_ms(asked, now_ms),
            own_id=own_id,
        )

    messages = await objects_of(
        call.request,
        Publish,
        message_of,
        bytes_max=BODY_PER_MESSAGE * served.service.config.message_size_max,
        count_max=_MESSAGES_MAX,
    )
    if call.caller is not None and not call.caller.may_read(call.topic_name):
        if subscriptions:
            raise RefusalError(403, "The role is not allowed to subscribe", field="subscription")
        if own_ids:
            advice = "Grant it consume as well, as for a cancel, or publish without an id"
            raise RefusalError(403, "The role is not allowed to replace messages", field="id", advice=advice)
    is_lines = call.request.content_type == LINES
    answer = PublishedIds()
    try:
        topic = await _topic(served, call, messages, may_be_made=bool(subscriptions))
        positions: Sequence[Position]
        if own_ids:
            operations = operations_of(served, topic, None, Progress())
            positions, answer.replaced, answer.in_hand = await served.producer.schedule(
                topic, messages, operations, subscriptions=list(subscriptions)
            )
        else:
            positions = await served.producer.publish(topic, messages, subscriptions=list(subscriptions))
    except UnpublishableError as error:
        refusal = RefusalError(error.status, str(error), field=error.field, advice=error.advice)
        raise refusal.in_line(error.place + 1) if is_lines else refusal from error
    ids = list(map(str, positions))
    if is_lines:
        answer.message_ids = ids
    else:
        answer.message_id = ids[0]
    return answer


async def _topic(served: Served, call: Call[None], messages: list[NewMessage], *, may_be_made: bool) -> Topic:
    topics, name = served.service.topics, call.topic_name
    topic = await topics.existing(name)
    if topic is not None:
        return topic
    if not may_be_made:
        advice = "Name a subscription that is to get it: both are made"
        raise RefusalError(404, f"There is no topic {name.short}, so nobody would get it", field="topic", advice=advice)
    # Nothing is made for a message that is refused.
    await served.producer.entries_of(messages, served.service.applied_policies(name).enforced_delay_ms_max)
    return await topics.get_or_create(name)


def _payload_of(asked: Publish) -> bytes:
    if (asked.payload is UNSET) == (asked.payload_base64 is UNSET):
        error = "payload and payloadBase64 are both given" if asked.payload is not UNSET else "there is no payload"
        advice = "Give payload for a text, empty for none, or payloadBase64 for any bytes"
        raise RefusalError(400, error, field="payload", advice=advice)
    if asked.payload is not UNSET:
        return asked.payload.encode()
    assert asked.payload_base64 is not UNSET
    try:
        return base64.b64decode(asked.payload_base64, validate=True)
    except (binascii.Error, ValueError) as error:
        advice = "Give a text as payload"
        raise RefusalError(
            400, f"payloadBase64 is not base64: {error}", field="payloadBase64", advice=advice
        ) from error


def _deliver_at_ms(asked: Publish, now_ms: int) -> int | None:
    if asked.deliver_after_ms is not UNSET:
        if asked.deliver_at_ms is not UNSET:
            error = "deliverAtMs and deliverAfterMs are both given"
            raise RefusalError(400, error, field="deliverAfterMs", advice="Give one of them, or none for at once")
        if now_ms + asked.deliver_after_ms > TIME_MS_MAX:
            error = "deliverAfterMs ends after the year 9999"
            raise RefusalError(400, error, field="deliverAfterMs", advice="Delay by less")
        return now_ms + asked.deliver_after_ms
    if asked.deliver_at_ms is UNSET:
        return None
    # A date that is written out may be before 1990; as a number it would count as seconds by mistake.
    return max(YEAR_1990_MS, time_ms_of("deliverAtMs", asked.deliver_at_ms, last_ms=TIME_MS_MAX))
