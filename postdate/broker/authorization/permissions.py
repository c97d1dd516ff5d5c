"""The permissions of a role.

    super user      everything
    produce         to look up, to see the statistics, to produce
    consume         to look up, to see the statistics, to subscribe, to acknowledge and to seek, to list and
                    to cancel scheduled messages
    both            to reschedule scheduled messages, and to deliver them now

Every other change is for super users.

A grant is for one topic or for all topics of a namespace; a grant for a topic is one for its partitions too. Without
authorization every role may do everything, and without authentication there are no roles. These are the rules of
Pulsar's `PulsarAuthorizationProvider`, but for administrators of tenants, of which there are none here.
"""

import re
from collections.abc import Collection
from typing import Final

from postdate.broker.authorization.grants import Action, GrantBook
from postdate.broker.topics.topic_name import TopicName

_PARTITION: Final = re.compile(r"(?P<topic>.+)-partition-\d+")


class Authorizer:
    """Answers what a role may do, from grants in memory.

    Args:
        grants: The grants of all namespaces.
        super_user_roles: The roles that may do everything.
    """

    def __init__(self, grants: GrantBook, super_user_roles: Collection[str]) -> None:
        self.grants = grants
        self._super_user_roles = frozenset(super_user_roles)

    def is_super_user(self, role: str | None) -> bool:
        """Whether a role may do everything."""
        return role in self._super_user_roles

    def may(self, role: str | None, action: Action, topic: TopicName) -> bool:
        """Whether a role may produce to a topic or consume from it."""
        return self.is_super_user(role) or (role is not None and action in self._granted(role, topic))

    def may_look_up(self, role: str | None, topic: TopicName) -> bool:
        """Whether a role may look up a topic and see its statistics."""
        return self.is_super_user(role) or (role is not None and bool(self._granted(role, topic)))

    def may_list_topics(self, role: str | None, namespace: str) -> bool:
        """Whether a role may know which topics a namespace (`tenant/namespace`) has."""
        return self.is_super_user(role) or (role is not None and bool(self.grants.of(namespace).roles.get(role)))

    def _granted(self, role: str, topic: TopicName) -> frozenset[Action]:
        grants = self.grants.of(topic.namespace_name)
        partition = _PARTITION.fullmatch(topic.local_name)
        owners = [None, topic.local_name] + ([] if partition is None else [partition["topic"]])
        nothing: frozenset[Action] = frozenset()
        return nothing.union(*(grants.of(owner).get(role, nothing) for owner in owners))
