"""Which services live, as one of them sees it by its own clock alone.

    a member     writes its counter each fifth of a lease; it has lapsed a lease after it began its last renewal
    its watcher  takes it for dead when a read that began a lease after it saw a change finds the same counter

A renewal that is answered before the member has lapsed is there for each read that could take it for dead: storages
read what was written. So the two agree as long as their clocks go at about the same rate; what they show is never
compared.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from managed_ledger.bundles import BundleRange
from postdate.broker.ownership.owners import Addresses

_DOUBT_SHARE: Final = 0.4
"""Of a lease, in which there are two renewals."""


class Member(NamedTuple):
    """What a service says of itself.

    Attributes:
        id: Drawn at each start, and again after a lapse.
        name: Of the service, which it keeps across starts.
        addresses: Where clients reach it.
        counter: Another one in each renewal.
        opened: The bundles that it has.
        opening: Those that it is opening.
        closing: Those of `opened` that it is closing.
        ready: Those that it waits for, and has warmed.
        pinned: Those that came by a transfer, and stay while it lives.
        refused: Those that it could not open several times, or lost soon: others are to have them.
        wanted: Transfers that it was asked for, to which member.
        load: Messages a second.
        is_leaving: Whether it is closing all.
    """

    id: str
    name: str
    addresses: Addresses = Addresses()
    counter: int = 0
    opened: frozenset[BundleRange] = frozenset()
    opening: frozenset[BundleRange] = frozenset()
    closing: frozenset[BundleRange] = frozenset()
    ready: frozenset[BundleRange] = frozenset()
    pinned: frozenset[BundleRange] = frozenset()
    refused: frozenset[BundleRange] = frozenset()
    wanted: Mapping[BundleRange, str] = {}
    load: float = 0.0
    is_leaving: bool = False

    @property
    def held(self) -> frozenset[BundleRange]:
        """The bundles that nobody else opens while it lives."""
        return self.opened | self.opening


class _Seen(NamedTuple):
    member: Member
    changed_s: float
    """When the read that showed this counter first was answered."""
    unchanged_s: float
    """When the last read that showed it began."""


class Membership:
    """The other members, as they were seen.

    Args:
        lease_s: How long a member lives without a renewal, in seconds.
    """

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._seen: dict[str, _Seen] = {}

    def see(self, member_id: str, member: Member | None, *, began_s: float, answered_s: float) -> None:
        """Take in an answer: what a member's object says, None where there is none.

        Args:
            member_id: Of the member.
            member: What was read.
            began_s: The own clock before the read was sent.
            answered_s: The own clock when it was answered.
        """
        before = self._seen.get(member_id)
        if member is None:
            self._seen.pop(member_id, None)
        elif before is None or before.member.counter != member.counter:
            self._seen[member_id] = _Seen(member, answered_s, began_s)
        else:
            self._seen[member_id] = before._replace(unchanged_s=began_s)

    def keep_only(self, ids: frozenset[str]) -> None:
        """Forget the members that a listing does not have any more."""
        self._seen = {member_id: seen for member_id, seen in self._seen.items() if member_id in ids}

    def ids(self) -> frozenset[str]:
        """All whose objects are there, dead ones too."""
        return frozenset(self._seen)

    def living(self) -> dict[str, Member]:
        """The members that live."""
        return {
            member_id: seen.member for member_id, seen in self._seen.items() if self._silence_s(seen) < self._lease_s
        }

    def is_in_doubt(self, member_id: str) -> bool:
        """Whether a member has missed a renewal, and may be dead."""
        seen = self._seen.get(member_id)
        return seen is not None and self._silence_s(seen) >= _DOUBT_SHARE * self._lease_s

    def dead(self, leases: float = 1) -> dict[str, Member]:
        """Those that have been silent for so many leases."""
        return {
            member_id: seen.member
            for member_id, seen in self._seen.items()
            if self._silence_s(seen) >= leases * self._lease_s
        }

    @staticmethod
    def _silence_s(seen: _Seen) -> float:
        return seen.unchanged_s - seen.changed_s
