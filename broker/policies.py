"""What operators set about delayed delivery for one topic or one namespace, over the broker's configuration.

    topic ──► namespace ──► broker.conf          (the first that has policies decides, all three values)

The values are Pulsar's `DelayedDeliveryPolicies`, in milliseconds: whether delivery times are heeded, the tick, and
the longest delay that a publish may ask for. Each owner's policies are one small record in the log's store, in the
JSON that the admin interface speaks. HTTP is not here (`broker.policy_routes`), nor is what policies do (`Topic`).
"""

import asyncio
import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Protocol

from broker.topic_name import TopicName

log = logging.getLogger(__name__)

MILLISECONDS_MAX: Final = 2**53 - 1
"""The largest number that every JSON reader keeps exactly, 285,000 years."""

PolicyOwner = TopicName | str
"""A topic, or a namespace as `tenant/namespace`."""

_RECORD_PREFIX: Final = "delayedDelivery "
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,19}")
_TRUTHS: Final = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}


class PolicyError(ValueError):
    """What an administrator asked for cannot be done; `status` is the HTTP status that says so."""

    status: ClassVar[int]


class MalformedPoliciesError(PolicyError):
    """The text is not the JSON of policies."""

    status = 400


class PolicyValueError(PolicyError):
    """A value is outside of what makes sense."""

    status = 412


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


def parse_policies(text: bytes) -> DelayedDeliveryPolicies | None:
    """Read policies as Pulsar does: a missing value is false or 0, other fields are ignored, nothing is None.

    >>> parse_policies(b'{"active": true, "tickTime": 500}')
    DelayedDeliveryPolicies(is_active=True, tick_time_ms=500, delay_ms_max=0)

    Raises:
        MalformedPoliciesError: It is not JSON, or a value is of another type.
        PolicyValueError: A number is negative or too large (Pulsar takes these).
    """
    try:
        found = json.loads(text) if text.strip() else None
    except (ValueError, RecursionError) as error:
        raise MalformedPoliciesError(f"The body is not JSON: {error}") from error
    if found is None:
        return None
    if not isinstance(found, dict):
        raise MalformedPoliciesError("The body must be an object with active, tickTime and maxDeliveryDelayInMillis")
    return DelayedDeliveryPolicies(
        is_active=_truth(found, "active"),
        tick_time_ms=_milliseconds(found, "tickTime"),
        delay_ms_max=_milliseconds(found, "maxDeliveryDelayInMillis"),
    )


def _truth(found: Mapping[str, Any], name: str) -> bool:
    value = found.get(name)
    if value is None:
        return False
    if isinstance(value, int):
        return bool(value)
    if isinstance(value, str) and value in _TRUTHS:
        return _TRUTHS[value]
    raise MalformedPoliciesError(f"{name} must be true or false, but is {json.dumps(value)}")


def _milliseconds(found: Mapping[str, Any], name: str) -> int:
    value = found.get(name)
    if value is None:
        return 0
    if isinstance(value, str) and _INTEGER.fullmatch(value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise MalformedPoliciesError(f"{name} must be a whole number of milliseconds, but is {json.dumps(value)}")
    if not 0 <= value <= MILLISECONDS_MAX:
        raise PolicyValueError(f"{name} must be from 0 to {MILLISECONDS_MAX} milliseconds, but is {value}")
    return value


class RecordStore(Protocol):
    """Where policies are kept; `LedgerStore` fits."""

    @property
    def records(self) -> Mapping[str, bytes]:
        """All records, by name."""

    async def put_record(self, name: str, value: bytes | None) -> None:
        """Store a record, or remove it; durable on return."""


class PolicyBook:
    """The policies of every owner that has some.

    Args:
        store: Where they are kept.
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
        """Return what is in force for a topic: its own policies, else its namespace's, else the configuration's."""
        return self.of(topic) or self.of(topic.namespace_name) or self._default

    async def put(self, owner: PolicyOwner, policies: DelayedDeliveryPolicies | None) -> None:
        """Store an owner's policies, None to have none; durable on return.

        Raises:
            LedgerWriteError: They could not be stored, and are as before.
        """
        name = _record_name(owner)
        # One after the other, so that memory ends with what the store ends with.
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
            log.warning("the stored policies %r are ignored: %s", name, error)
            return
        if policies is not None:
            self._policies[name] = policies


def _record_name(owner: PolicyOwner) -> str:
    return f"{_RECORD_PREFIX}{owner}"
