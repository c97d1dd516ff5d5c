"""The policies of delayed delivery for a topic or a namespace, which override the broker's configuration.

    topic ──► namespace ──► broker.conf          (the first that has policies decides, all three values)

The values are Pulsar's `DelayedDeliveryPolicies`, in milliseconds: whether delivery times are heeded, the tick, and
the longest delay that a publish may ask for. Each owner's policies are one small record in the log's store, in the
JSON of the admin interface. Left out are HTTP (`admin.policy_routes`) and the effects of policies (`Topic`).
"""

import asyncio
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final, Protocol

from postdate.broker.topics.topic_name import TopicName

logger = logging.getLogger(__name__)

MILLISECONDS_MAX: Final = 2**53 - 1
"""The largest number that every JSON reader keeps exactly, 285,000 years."""

PolicyOwner = TopicName | str
"""A topic, or a namespace as `tenant/namespace`."""

_RECORD_PREFIX: Final = "delayedDelivery "
_FIELDS: Final = ("active", "tickTime", "maxDeliveryDelayInMillis")
_FIELDS_TEXT: Final = f"{', '.join(_FIELDS[:-1])} and {_FIELDS[-1]}"
_SHOWN_CHARACTERS_MAX: Final = 100


class PolicyError(ValueError):
    """A body is not valid as policies; the text names the field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayedDeliveryPolicies:
    """Policies of one owner, or those that are in force."""

    is_active: bool
    """Whether delivery times are heeded; if not, every message is delivered at once."""
    tick_time_ms: int
    """How early a message may be delivered when times are not strict."""
    delay_ms_max: int
    """The longest delay that a publish may ask for, 0 for any (PIP-315)."""

    @property
    def enforced_delay_ms_max(self) -> int:
        """The longest delay that is accepted, 0 for any: without delays there is no limit, as in Pulsar."""
        return self.delay_ms_max if self.is_active else 0

    def to_json(self) -> str:
        """Write them as Pulsar does.

        >>> DelayedDeliveryPolicies(is_active=True, tick_time_ms=500, delay_ms_max=0).to_json()
        '{"tickTime":500,"active":true,"maxDeliveryDelayInMillis":0}'
        """
        named = {
            "tickTime": self.tick_time_ms,
            "active": self.is_active,
            "maxDeliveryDelayInMillis": self.delay_ms_max,
        }
        return json.dumps(named, separators=(",", ":"))


def parse_policies(text: bytes) -> DelayedDeliveryPolicies:
    """Parse policies strictly.

    Pulsar accepts more: there a body with a misspelled `active` switches delays off, and an empty one removes policies.

    >>> parse_policies(b'{"active": true, "tickTime": 500}')
    DelayedDeliveryPolicies(is_active=True, tick_time_ms=500, delay_ms_max=0)

    Raises:
        PolicyError: It is not JSON, `active` is missing, a field is unknown or given twice, or a value is of another
            type, negative or too large; the text names the field.
    """
    if not text.strip():
        raise PolicyError("The body is empty; DELETE removes policies")
    try:
        found = json.loads(text, object_pairs_hook=_without_repetition)
    except (ValueError, RecursionError) as error:
        raise error if isinstance(error, PolicyError) else PolicyError(f"The body is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise PolicyError(f"The body must be an object with {_FIELDS_TEXT}, but is {_shown(found)}")
    for name in found:
        if name not in _FIELDS:
            similar = get_close_matches(name, _FIELDS, n=1)
            guess = f"; did you mean {similar[0]}?" if similar else ""
            raise PolicyError(f"There is no field {_shown(name)}, only {_FIELDS_TEXT}{guess}")
    if "active" not in found:
        raise PolicyError("active is missing: true heeds delivery times, false delivers everything at once")
    if not isinstance(found["active"], bool):
        raise PolicyError(f"active must be true or false, but is {_shown(found['active'])}")
    return DelayedDeliveryPolicies(
        is_active=found["active"],
        tick_time_ms=_milliseconds(found, "tickTime"),
        delay_ms_max=_milliseconds(found, "maxDeliveryDelayInMillis"),
    )


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        repeated = next(name for name in found if sum(name == other for other, _ in pairs) > 1)
        raise PolicyError(f"{_shown(repeated)} is given twice")
    return found


def _milliseconds(found: Mapping[str, Any], name: str) -> int:
    value = found.get(name, 0)
    if isinstance(value, bool) or not isinstance(value, int):
        raise PolicyError(f"{name} must be a whole number of milliseconds, but is {_shown(value)}")
    if not 0 <= value <= MILLISECONDS_MAX:
        raise PolicyError(f"{name} must be from 0 to {MILLISECONDS_MAX} milliseconds, but is {_shown(value)}")
    return value


def _shown(value: Any) -> str:
    """Write a value as JSON, of a long one its beginning."""
    text = json.dumps(value)
    return text if len(text) <= _SHOWN_CHARACTERS_MAX else f"{text[:_SHOWN_CHARACTERS_MAX]}..."


class RecordStore(Protocol):
    """The storage of policies; `LedgerStore` implements it."""

    @property
    def records(self) -> Mapping[str, bytes]:
        """All records, by name."""

    async def put_record(self, name: str, value: bytes | None) -> None:
        """Store a record, or remove it; durable on return."""


class PolicyBook:
    """The policies of every owner that has some.

    Args:
        store: The storage of the records.
        default: The configuration's, for owners without.
    """

    def __init__(self, store: RecordStore, default: DelayedDeliveryPolicies) -> None:
        self._store = store
        self._default = default
        self._lock = asyncio.Lock()
        self._policies: dict[str, DelayedDeliveryPolicies] = {}
        for name, value in store.records.items():
            if name.startswith(_RECORD_PREFIX):
                self._load(name, value)

    def of(self, owner: PolicyOwner) -> DelayedDeliveryPolicies | None:
        """Return an owner's own policies, None if it has none."""
        return self._policies.get(_record_name(owner))

    def applied(self, topic: TopicName) -> DelayedDeliveryPolicies:
        """Return the policies in force for a topic: its own, else its namespace's, else the configuration's."""
        return self.of(topic) or self.of(topic.namespace_name) or self._default

    async def put(self, owner: PolicyOwner, policies: DelayedDeliveryPolicies | None) -> None:
        """Store an owner's policies, None to have none; durable on return.

        Raises:
            LedgerWriteError: They could not be stored, and are as before.
        """
        name = _record_name(owner)
        # Changes are serialized, so that memory and store end with the same policies.
        async with self._lock:
            await self._store.put_record(name, None if policies is None else policies.to_json().encode())
            if policies is None:
                self._policies.pop(name, None)
            else:
                self._policies[name] = policies

    def _load(self, name: str, value: bytes) -> None:
        try:
            policies = parse_policies(value)
        except PolicyError as error:
            logger.warning("the stored policies %r are ignored: %s", name, error)
            return
        self._policies[name] = policies


def _record_name(owner: PolicyOwner) -> str:
    return f"{_RECORD_PREFIX}{owner}"
