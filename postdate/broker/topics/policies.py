"""The policies of delayed delivery for a topic or a namespace, which override the broker's configuration.

    topic ──► namespace ──► broker.conf          (the first that has policies decides, all three values)

The values are Pulsar's `DelayedDeliveryPolicies`, in milliseconds: whether delivery times are heeded, the tick, and
the longest delay that a publish may ask for. Each owner's policies are one small record in the log's store, in the
JSON of the admin interface. Left out are HTTP (`postdate.broker.admin.pulsar_handlers`) and the effects of policies
(`Topic`).
"""

from collections.abc import Mapping
from typing import Annotated, Final, Protocol

import msgspec
from msgspec import Meta, Struct, field

from postdate.broker.topics.topic_name import TopicName

MILLISECONDS_MAX: Final = 2**53 - 1
"""The largest number that every JSON reader keeps exactly, 285,000 years."""

PolicyOwner = TopicName | str
"""A topic, or a namespace as `tenant/namespace`."""

_RECORD_PREFIX: Final = "delayedDelivery "


class DelayedDeliveryPolicies(Struct, frozen=True, kw_only=True):
    """Policies of one owner, or those that are in force; in JSON as Pulsar has them.

    Pulsar takes more: there a body without `active`, or with a misspelled one, switches delays off.
    """

    tick_time_ms: Annotated[int, Meta(ge=0, le=MILLISECONDS_MAX)] = field(default=0, name="tickTime")
    """How early a message may be delivered when times are not strict."""
    is_active: bool = field(name="active")
    """Whether delivery times are heeded; if not, every message is delivered at once."""
    delay_ms_max: Annotated[int, Meta(ge=0, le=MILLISECONDS_MAX)] = field(default=0, name="maxDeliveryDelayInMillis")
    """The longest delay that a publish may ask for, 0 for any (PIP-315)."""

    @property
    def enforced_delay_ms_max(self) -> int:
        """The longest delay that is accepted, 0 for any: without delays there is no limit, as in Pulsar."""
        return self.delay_ms_max if self.is_active else 0


class RecordStore(Protocol):
    """The storage of policies; `LedgerStore` implements it."""

    @property
    def records(self) -> Mapping[str, bytes]:
        """All records, by name."""

    async def put_record(self, name: str, value: bytes | None) -> None:
        """Store a record, or remove it; durable on return."""


async def remove_record(store: RecordStore, name: str) -> None:
    """Remove a record, if there is one.

    Raises:
        LedgerWriteError: It could not be removed.
    """
    if name in store.records:
        await store.put_record(name, None)


class PolicyBook:
    """The policies of every owner that has some.

    Args:
        store: The storage of the records of topics.
        default: The configuration's, for owners without.
        of_namespaces: The storage of those of namespaces; None for the same.
    """

    def __init__(
        self, store: RecordStore, default: DelayedDeliveryPolicies, of_namespaces: RecordStore | None = None
    ) -> None:
        self._of_topics = store
        self._of_namespaces = store if of_namespaces is None else of_namespaces
        self._default = default

    def of(self, owner: PolicyOwner) -> DelayedDeliveryPolicies | None:
        """Return an owner's own policies, None if it has none."""
        value = self._store_of(owner).records.get(_record_name(owner))
        return None if value is None else msgspec.json.decode(value, type=DelayedDeliveryPolicies)

    def applied(self, topic: TopicName) -> DelayedDeliveryPolicies:
        """Return the policies in force for a topic: its own, else its namespace's, else the configuration's."""
        return self.of(topic) or self.of(topic.namespace_name) or self._default

    async def put(self, owner: PolicyOwner, policies: DelayedDeliveryPolicies | None) -> None:
        """Store an owner's policies, None to have none; durable on return.

        Raises:
            LedgerWriteError: They could not be stored, and are as before.
        """
        value = None if policies is None else msgspec.json.encode(policies)
        await self._store_of(owner).put_record(_record_name(owner), value)

    def _store_of(self, owner: PolicyOwner) -> RecordStore:
        return self._of_topics if isinstance(owner, TopicName) else self._of_namespaces


def _record_name(owner: PolicyOwner) -> str:
    return f"{_RECORD_PREFIX}{owner}"
