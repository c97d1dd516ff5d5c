"""A member's own lease: its object, renewed under the tag of the renewal before."""

from collections.abc import Callable

from postdate.broker.ownership.core.membership import Member
from postdate.broker.ownership.member_objects import MemberObjects


class LeaseGoneError(Exception):
    """The object of this member was deleted: the others take it for dead."""


class OwnLease:
    """Keeps one life of a member; after a lapse there is another one.

    Args:
        objects: Where members are.
        member_id: Of this life.
        lease_s: How long it lives without a renewal, in seconds.
        clock_s: A clock that never goes back, and counts while the machine is suspended, in seconds.
    """

    def __init__(self, objects: MemberObjects, member_id: str, lease_s: float, clock_s: Callable[[], float]) -> None:
        self.id = member_id
        self._objects = objects
        self._lease_s = lease_s
        self._clock_s = clock_s
        self._counter = 0
        self._tag: str | None = None
        self._renewed_s: float | None = None

    def age_s(self) -> float | None:
        """Seconds since the last renewal, counted from before it was sent; None before the first."""
        return None if self._renewed_s is None else self._clock_s() - self._renewed_s

    def has_lapsed(self, share: float = 1) -> bool:
        """Whether this share of the lease is over; not before the first renewal."""
        age_s = self.age_s()
        return age_s is not None and age_s >= self._lease_s * share

    async def renew(self, member: Member) -> None:
        """Write what the member says of itself.

        Raises:
            LeaseGoneError: There is no lease to renew any more.
            Exception: What the storage has for failures; whether it was written is unknown then.
        """
        began_s = self._clock_s()
        self._counter += 1
        tag = await self._objects.write(member._replace(id=self.id, counter=self._counter), self._tag)
        if tag is None:
            found = await self._objects.read_own(self.id)
            if found is None and self._tag is not None:
                raise LeaseGoneError
            if found is None:
                raise OSError(f"{self._objects}/{self.id} was not written, and nothing is there")
            # A write whose answer was lost. Where it was not this one, its content is old: write again, under its tag.
            self._tag = found[1]
            if found[0] is None or found[0].counter != self._counter:
                return await self.renew(member)
            tag = found[1]
        self._tag = tag
        # An answer after the lapse is too late: others may have taken this member for dead meanwhile.
        if not self.has_lapsed():
            self._renewed_s = began_s
        return None
