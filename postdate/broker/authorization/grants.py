"""The grants of roles, per namespace and per topic, and their storage.

    {"namespace": {"anna": ["produce", "consume"]}, "topics": {"orders": {"berta": ["consume"]}}}

That is the record of one namespace, so a change of a grant is one synced write: whole or not at all. A record that
cannot be read grants nothing. Permissions are decided in `postdate.broker.authorization.permissions`, HTTP is in
`postdate.broker.admin.pulsar_handlers`.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, Protocol

from postdate.broker.topics.topic_name import TopicName

logger = logging.getLogger(__name__)

_RECORD_PREFIX: Final = "permissions "


class Action(StrEnum):
    """An action that can be granted; Pulsar's other actions belong to functions and connectors, which are left out."""

    PRODUCE = "produce"
    CONSUME = "consume"


Actions = frozenset[Action]
RoleActions = Mapping[str, Actions]


@dataclass(frozen=True, slots=True)
class NamespaceGrants:
    """All grants of one namespace, immutable.

    Attributes:
        roles: The actions of roles on every topic.
        topics: The actions of roles on one topic, by its local name.
    """

    roles: RoleActions = field(default_factory=dict)
    topics: Mapping[str, RoleActions] = field(default_factory=dict)

    def of(self, topic: str | None) -> RoleActions:
        """Return the grants of one topic, by its local name, or of the namespace."""
        return self.roles if topic is None else self.topics.get(topic, {})

    def with_grant(self, topic: str | None, role: str, actions: Actions | None) -> "NamespaceGrants":
        """Give a role these actions in place of its earlier ones; None takes its entry away."""
        changed = {other: granted for other, granted in self.of(topic).items() if other != role}
        if actions is not None:
            changed[role] = actions
        if topic is None:
            return replace(self, roles=changed)
        others = self.without_topic(topic)
        return replace(others, topics={**others.topics, topic: changed}) if changed else others

    def without_topic(self, topic: str) -> "NamespaceGrants":
        """Take away all grants on one topic, by its local name."""
        return replace(self, topics={other: granted for other, granted in self.topics.items() if other != topic})

    def to_json(self) -> str:
        """Return the record as it is stored."""
        topics = {topic: role_actions_json(granted) for topic, granted in self.topics.items()}
        return json.dumps({"namespace": role_actions_json(self.roles), "topics": topics})


def role_actions_json(granted: RoleActions) -> dict[str, list[str]]:
    """Write roles and their actions as Pulsar does.

    >>> role_actions_json({"anna": frozenset({Action.CONSUME, Action.PRODUCE})})
    {'anna': ['produce', 'consume']}
    """
    return {role: [action.value for action in Action if action in actions] for role, actions in granted.items()}


def parse_grants(text: bytes) -> NamespaceGrants:
    """Read a stored record.

    Raises:
        ValueError: The record holds no grants.
    """
    try:
        found = json.loads(text)
        return NamespaceGrants(
            _parse_roles(found["namespace"]),
            {topic: _parse_roles(roles) for topic, roles in found["topics"].items()},
        )
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"it has another form ({error!r})") from error


def _parse_roles(found: Mapping[str, Iterable[str]]) -> RoleActions:
    return {role: frozenset(Action(action) for action in actions) for role, actions in found.items()}


class GrantStore(Protocol):
    """The storage of grants, which other processes may change, too."""

    @property
    def records(self) -> Mapping[str, bytes]:
        """All records, by name."""

    async def change_record(self, name: str, change: Callable[[bytes | None], bytes | None]) -> None:
        """Store what `change` makes of a record as it is now, None for no record; durable on return."""


class GrantBook:
    """The grants of every namespace that has some.

    Args:
        store: The storage of the records.
    """

    def __init__(self, store: GrantStore) -> None:
        self._store = store
        self._lock = asyncio.Lock()
        self._parsed: dict[str, tuple[bytes, NamespaceGrants]] = {}
        """The last record of each namespace that was asked for: another process may replace it."""

    def of(self, namespace: str) -> NamespaceGrants:
        """Return the grants of a namespace (`tenant/namespace`)."""
        value = self._store.records.get(f"{_RECORD_PREFIX}{namespace}")
        if value is None:
            self._parsed.pop(namespace, None)
            return _NO_GRANTS
        known = self._parsed.get(namespace)
        if known is None or known[0] != value:
            known = self._parsed[namespace] = value, _granted_by(namespace, value)
        return known[1]

    async def grant(self, owner: TopicName | str, role: str, actions: Actions | None) -> None:
        """Give a role these actions for a topic or a namespace; durable on return, None takes its entry away.

        Raises:
            LedgerWriteError: The grant could not be stored, and all grants are as before.
        """
        namespace = owner.namespace_name if isinstance(owner, TopicName) else owner
        topic = owner.local_name if isinstance(owner, TopicName) else None
        # Changes are serialized: each is applied to the record that the one before has stored.
        async with self._lock:
            await self._change(namespace, lambda grants: grants.with_grant(topic, role, actions))

    async def forget_topic(self, topic: TopicName) -> None:
        """Take away all grants on a topic that is being deleted, as Pulsar does; durable on return.

        Raises:
            LedgerWriteError: They could not be taken away, and are as before.
        """
        async with self._lock:
            if topic.local_name in self.of(topic.namespace_name).topics:
                await self._change(topic.namespace_name, lambda grants: grants.without_topic(topic.local_name))

    async def _change(self, namespace: str, change: Callable[[NamespaceGrants], NamespaceGrants]) -> None:
        def changed(value: bytes | None) -> bytes | None:
            grants = change(_NO_GRANTS if value is None else _granted_by(namespace, value))
            return grants.to_json().encode() if grants.roles or grants.topics else None

        await self._store.change_record(f"{_RECORD_PREFIX}{namespace}", changed)


_NO_GRANTS: Final = NamespaceGrants()


def _granted_by(namespace: str, value: bytes) -> NamespaceGrants:
    try:
        return parse_grants(value)
    except ValueError as error:
        logger.error("the stored grants of %s are ignored, so nothing is granted there: %s", namespace, error)
        return _NO_GRANTS
