"""The answers about scheduled messages, as msgspec structs: JSON and the OpenAPI document are made of them.

A field of Python's style is one in camel case in JSON. One that is `UNSET` is left out, and null says "none" or "not
known". Class names are the names of the schemas.
"""

from typing import Annotated, Any, Final, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from postdate.command_line.output import iso_or_none

IDS_TOLD_MAX: Final = 10_000
"""The most ids in one answer: as many as a request can select by ids."""

Count = Annotated[int, Meta(ge=0)]
TimeMs = Annotated[int | None, Meta(description="Milliseconds since 1970")]
TimeText = Annotated[str | None, Meta(extra_json_schema={"format": "date-time"})]


def both(name: str, time_ms: int | None) -> dict[str, Any]:
    """Return a time as the two fields of a struct: milliseconds and text.

    >>> both("deliver_at", 0)
    {'deliver_at_ms': 0, 'deliver_at': '1970-01-01T00:00:00.000Z'}
    """
    return {f"{name}_ms": time_ms, name: iso_or_none(time_ms)}


class Answer(Struct, kw_only=True, rename="camel"):
    """Base of the answers."""


class Counts(Answer, kw_only=True):
    """How much is scheduled, and when."""

    delayed: Annotated[Count, Meta(description="Messages whose time has not come")]
    overdue: Annotated[Count, Meta(description="Messages that are due and in no hand")]
    in_hand: Annotated[
        Count,
        Meta(description="Messages that a consumer has, or is about to be sent, and no subscription waits for"),
    ]
    due_within_minute: Annotated[Count, Meta(description="Of the delayed ones; so is what is due within more time")]
    due_within_hour: Count
    due_within_day: Count
    first_overdue_ms: Annotated[int | None, Meta(description="When the first one of those that are overdue was due")]
    next_due_ms: TimeMs
    next_due: TimeText
    last_due_ms: TimeMs
    last_due: TimeText


SubscriptionType = Annotated[str | None, Meta(description="Null until the first subscribe after a start, if it delays")]
Delays = Annotated[bool, Meta(description="Whether it heeds delivery times: Shared and Key_Shared do")]
Author = Annotated[str | None, Meta(description="The role, without authentication the address, that paused it")]
Rate = Annotated[float | None, Meta(description="While a resume is smooth")]


class SubscriptionKind(Answer, kw_only=True):
    """Whether a subscription delays."""

    name: str
    type: SubscriptionType
    delays: Delays


class SubscriptionPause(Answer, kw_only=True):
    """Whether a subscription is paused, and at which rate it is resumed."""

    name: str
    paused: bool
    paused_since_ms: TimeMs
    paused_since: TimeText
    paused_by: Author
    pause_note: str | None
    rate_per_second: Rate


class TopicSubscription(Counts, kw_only=True):
    """A subscription of a topic."""

    name: str
    type: SubscriptionType
    delays: Delays
    consumers: Count
    backlog: Annotated[Count, Meta(description="Entries of the log that are not acknowledged; a batch is one")]
    paused: bool
    paused_since_ms: TimeMs
    paused_since: TimeText
    paused_by: Author
    pause_note: str | None
    rate_per_second: Rate


class TopicAnswer(Counts, kw_only=True):
    """The summary of a topic."""

    name: str
    subscriptions: list[TopicSubscription]
    backlog: Annotated[
        Count,
        Meta(
            description="Entries of the log that are not acknowledged, of all subscriptions; a batch is one",
        ),
    ]
    paused: Annotated[bool, Meta(description="Whether one of the subscriptions is")]
    published_without_subscription: Annotated[
        Count,
        Meta(
            description="Messages that were published while there was no subscription, since the service's start",
        ),
    ]
    may_pause: Annotated[bool, Meta(description="Whether the caller may pause and resume it")] = True


class Topics(Answer, kw_only=True):
    """A page of the list of topics."""

    topics: list[TopicAnswer]
    next: str | None
    total: Annotated[Count, Meta(description="How many there are on all pages")]


class Totals(Answer, kw_only=True):
    """How much is scheduled in all topics; a message counts once, however many subscriptions wait for it."""

    topics: Annotated[Count, Meta(description="How many topics the caller may see")]
    delayed: Annotated[Count, Meta(description="Messages whose time has not come")]
    overdue: Annotated[Count, Meta(description="Messages that are due and in no hand")]
    due_within_minute: Annotated[Count, Meta(description="Of the delayed ones; so is what is due within more time")]
    due_within_hour: Count
    due_within_day: Count
    unknown: Annotated[
        Count, Meta(description="Topics that are not counted in, as nothing is known of them: see `/health`")
    ]
    estimated: Annotated[
        Count, Meta(description="Closed topics with several delayed messages: what is due of them soon is an estimate")
    ]


class Subscriptions(Answer, kw_only=True):
    """The subscriptions of a topic."""

    subscriptions: list[SubscriptionKind]


class PausesAnswer(Answer, kw_only=True):
    """The pauses of a topic's subscriptions."""

    subscriptions: list[SubscriptionPause]


class MessageAnswer(Answer, kw_only=True):
    """A message; its payload only where it was asked for."""

    message_id: str
    deliver_at_ms: TimeMs
    deliver_at: TimeText
    publish_time_ms: TimeMs
    publish_time: TimeText
    key: Annotated[str | None, Meta(description="The ordering key; the partition key of a message without one")]
    key_base64: Annotated[str | None, Meta(description="The key, where it is no text")]
    properties: dict[str, str]
    size_bytes: Count
    producer_name: str
    damaged: Annotated[
        bool,
        Meta(
            description="Whether the log is damaged where it is: its header alone is known, and no consumer gets it",
        ),
    ]
    waiting: (
        Annotated[
            list[str],
            Meta(description="The subscriptions that wait for it, ten at most; only in a list of what is scheduled"),
        ]
        | UnsetType
    ) = UNSET
    payload: Annotated[str, Meta(extra_json_schema={"contentEncoding": "base64"})] | UnsetType = UNSET
    payload_compression: (
        Annotated[str | None, Meta(description="By what the payload is compressed still")] | UnsetType
    ) = UNSET


class PageAnswer(Answer, kw_only=True):
    """A page of scheduled messages."""

    messages: list[MessageAnswer]
    next: str | None


class Bucket(Answer, kw_only=True):
    """A span of a histogram."""

    from_ms: int
    until_ms: Annotated[int, Meta(description="Not included, but for 2^63 - 1, the latest time there is")]
    count: Count


class Undelayed(Answer, kw_only=True):
    """A subscription that does not delay."""

    subscription: str
    type: str
    sentence: str


class HistogramAnswer(Counts, kw_only=True):
    """How much is due when."""

    total: Annotated[Count, Meta(description="All that is scheduled: delayed and overdue")]
    buckets: list[Bucket]
    undelayed: Annotated[
        list[Undelayed],
        Meta(
            description="The subscriptions meant that do not delay, Exclusive and Failover: none of their messages "
            "counts"
        ),
    ]


class State(Answer, kw_only=True):
    """The state of a message for one subscription."""

    subscription: str
    state: Literal["delayed", "held", "waiting", "pending", "damaged", "acknowledged", "expired"]
    sentence: str
    consumer: Annotated[str | None, Meta(description="The consumer that has it, or that it waits for")]
    since_ms: Annotated[
        int | None,
        Meta(
            description="Milliseconds since 1970: delayed since it was published, held since the pause began, waiting "
            "since it was due or published, pending since its consumer got it; null where not known"
        ),
    ]
    since: TimeText
    slot: Annotated[int | None, Meta(description="The hash slot of its key")]
    reason: Annotated[str | None, Meta(description="The reason why it waits")]
    may_have_expired: Annotated[
        bool,
        Meta(
            description="Whether it expired, or may have: it is acknowledged and its time to live has ended, and of a "
            "message that expired long ago nothing else is known"
        ),
    ]


class ExplainedMessage(MessageAnswer, kw_only=True):
    """A message and its state."""

    sentence: str
    subscriptions: list[State]


class Explanation(Answer, kw_only=True):
    """Where messages are, and why."""

    sentence: str
    messages: list[ExplainedMessage]


class ChangeAnswer(Answer, kw_only=True):
    """The outcome of a change, or of a look at one."""

    matched: Annotated[Count, Meta(description="Messages that are meant: scheduled, or in the hand of a consumer")]
    already_due: Annotated[Count, Meta(description="Of that, what is due and in no hand: cancelled, but not moved")]
    in_hand: Annotated[
        Count,
        Meta(
            description="Messages that a consumer of a subscription meant has in hand or is about to be sent, as is "
            "all that an Exclusive or Failover subscription has not acknowledged: changed for the other subscriptions "
            "alone, and not counted as changed"
        ),
    ]
    unknown: Annotated[Count, Meta(description="Ids of nothing that is scheduled")]
    damaged: (
        Annotated[
            list[str],
            Meta(
                max_length=IDS_TOLD_MAX,
                description="Entries that were left out, as the log is damaged where they are; `postdate ledger "
                "repair` gives them up. Of those that a key or a property selects it is not known whether they are "
                "meant",
            ),
        ]
        | UnsetType
    ) = UNSET
    damaged_count: (
        Annotated[Count, Meta(description="How many these are; no field where there are none")] | UnsetType
    ) = UNSET
    gone: (
        Annotated[Count, Meta(description="Of that, what was acknowledged, expired or trimmed while it was changed")]
        | UnsetType
    ) = UNSET


class PublishedIds(Answer, kw_only=True):
    """What was published."""

    message_id: Annotated[str, Meta(description="ledger:entry; of one object")] | UnsetType = UNSET
    message_ids: Annotated[list[str], Meta(description="In order; of lines")] | UnsetType = UNSET
    replaced: (
        Annotated[Count, Meta(description="Messages of the same ids that no consumer gets any more; with an id")]
        | UnsetType
    ) = UNSET
    in_hand: (
        Annotated[Count, Meta(description="Messages of the same ids that a consumer has: they stay; with an id")]
        | UnsetType
    ) = UNSET


class Cancelled(ChangeAnswer, kw_only=True):
    """The outcome of a cancel."""

    cancelled: Annotated[Count, Meta(description="Messages that no consumer has got, nor gets")] | UnsetType = UNSET


class Moved(ChangeAnswer, kw_only=True):
    """The outcome of a change by copies."""

    ids: Annotated[dict[str, str], Meta(description="Old to new, where ids were given")] | UnsetType = UNSET


class Rescheduled(Moved, kw_only=True):
    """The outcome of a reschedule."""

    rescheduled: Count | UnsetType = UNSET
    already_shifted: (
        Annotated[
            Count,
            Meta(description="Of that, copies that the same shift has made before (Operation-Id)"),
        ]
        | UnsetType
    ) = UNSET


class Delivered(Moved, kw_only=True):
    """The outcome of a deliver-now."""

    delivered: Count | UnsetType = UNSET


class Affected(Answer):
    """What a change would do, in entries of the log: a whole batch is one."""

    entries: Annotated[int, Meta(ge=0, description="Those that are not acknowledged, and that nobody would get then")]
    redelivered: Annotated[int, Meta(ge=0, description="Acknowledged ones that would be delivered again")] = 0


Kind = Literal["cancel", "reschedule", "deliver-now", "backup"]


class OperationAnswer(Answer, kw_only=True):
    """How far a change or a backup is."""

    id: str
    kind: Kind
    topic: Annotated[str | None, Meta(description="Null for a backup, which is counted in bytes")]
    started_ms: TimeMs
    started: TimeText
    searching: Annotated[bool, Meta(description="Whether it still looks for what is meant; nothing has changed then")]
    searched: Annotated[Count, Meta(description="How many entries of the log it has looked at to find what is meant")]
    matched: Annotated[Count, Meta(description="Messages that are meant; while it searches, those found so far.")]
    done: Annotated[Count, Meta(description="Messages changed or passed over so far.")]
    finished: bool
    error: Annotated[str | None, Meta(description="How it failed; portions before that are done")]
