"""Whose each bundle is: equal shares of those that nobody has pinned, and as few moves as that takes.

    keep    each member keeps what it has, up to its share; above it, the bundles of the highest weight
    give    what is left goes to members below their share, the highest weight of all first
    refuse  a bundle that some member cannot open goes to another one, as long as there is one
    weight  a hash of bundle and member (rendezvous hashing, Thaler and Ravishankar 1996)

So the death of a member moves its bundles alone, and one that joins gets its share and no more. All who see the same
members come to the same plan; and each step towards a plan (a bundle let go, or opened) leaves it as it was.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache, partial

from managed_ledger.bundles import BundleRange
from postdate.broker.ownership.core.membership import Member

Plan = Mapping[BundleRange, str]
"""The id of the member that is to have each bundle; of none, nobody is there."""


def place(bundles: Sequence[BundleRange], members: Iterable[Member]) -> Plan:
    """Return whose each bundle is to be.

    Args:
        bundles: All bundles.
        members: Those that live. Such as are leaving get nothing.
    """
    staying = {one.id: one for one in members if not one.is_leaving}
    if not staying:
        return {}
    plan = _elsewhere(bundles, staying) | _pins(bundles, staying)
    free = [one for one in bundles if one not in plan]
    kept = _held(free, staying)
    shares = _shares(len(free), staying, {member_id: len(held) for member_id, held in kept.items()})
    for member_id, held in kept.items():
        ranked = sorted(held, key=partial(_weight, member=staying[member_id]), reverse=True)
        plan.update(dict.fromkeys(ranked[: shares[member_id]], member_id))
        shares[member_id] -= min(shares[member_id], len(held))
    left = [one for one in free if one not in plan]
    pairs = sorted(
        ((_weight(bundle, one), bundle, one.id) for bundle in left for one in staying.values()), reverse=True
    )
    for _, bundle, member_id in pairs:
        if bundle not in plan and shares[member_id]:
            plan[bundle] = member_id
            shares[member_id] -= 1
    assert len(plan) == len(bundles)
    return plan


def runners_up(bundles: Sequence[BundleRange], members: Sequence[Member], plan: Plan) -> Plan:
    """Return who gets each bundle next, if its owner of the plan goes: who keeps a warm copy."""
    found: dict[BundleRange, str] = {}
    for owner in set(plan.values()):
        without = place(bundles, [one for one in members if one.id != owner])
        found.update((bundle, without[bundle]) for bundle in bundles if plan[bundle] == owner and bundle in without)
    return found


def next_other(bundle: BundleRange, holder: str | None, members: Iterable[Member]) -> Member | None:
    """Return who is to have a bundle that must leave its holder: one that has the fewest; None if there is no other."""
    others = [one for one in members if one.id != holder and not one.is_leaving]
    return min(others, key=lambda one: (len(one.held), _weight(bundle, one)), default=None)


def holder_of(bundle: BundleRange, members: Iterable[Member]) -> Member | None:
    """Return who has a bundle, or else is opening it."""
    found = [one for one in members if bundle in one.held]
    return max(found, key=lambda one: (bundle in one.opened, _weight(bundle, one)), default=None)


def _pins(bundles: Sequence[BundleRange], staying: Mapping[str, Member]) -> dict[BundleRange, str]:
    """Return where transfers have put bundles: each is there for good, and a new wish is stronger."""
    ordered = sorted(staying.values())
    pins = {bundle: one.id for one in ordered for bundle in one.pinned if bundle in bundles}
    pins |= {bundle: one.id for one in ordered for bundle in one.pinned & one.opened if bundle in bundles}
    for one in ordered:
        pins |= {bundle: to for bundle, to in one.wanted.items() if to in staying and bundle in bundles}
    return pins


def _elsewhere(bundles: Sequence[BundleRange], staying: Mapping[str, Member]) -> dict[BundleRange, str]:
    """Return who is to have the bundles that some cannot open, and others perhaps can."""
    found: dict[BundleRange, str] = {}
    for bundle in bundles:
        willing = [one for one in staying.values() if bundle not in one.refused]
        if willing and len(willing) < len(staying):
            holder = holder_of(bundle, willing)
            found[bundle] = (holder or max(willing, key=partial(_weight, bundle))).id
    return found


def _held(free: Sequence[BundleRange], staying: Mapping[str, Member]) -> dict[str, list[BundleRange]]:
    held: dict[str, list[BundleRange]] = {member_id: [] for member_id in staying}
    for bundle in free:
        holder = holder_of(bundle, staying.values())
        if holder is not None:
            held[holder.id].append(bundle)
    return held


def _shares(count: int, staying: Mapping[str, Member], held: Mapping[str, int]) -> dict[str, int]:
    """Return how many each is to have; what cannot be divided goes to those that have more already, then by hash."""
    share, more = divmod(count, len(staying))

    def rank(member_id: str) -> tuple[bool, bytes]:
        # Not by how many more: each bundle that is opened or closed on the way to the plan would change the shares.
        return held[member_id] > share, _hash(staying[member_id].name, member_id)

    ranked = sorted(staying, key=rank, reverse=True)
    return {member_id: share + (number < more) for number, member_id in enumerate(ranked)}


def _weight(bundle: BundleRange, member: Member) -> bytes:
    # By the name, which outlives a restart: the bundles whose tables are still in a cache come back to it.
    return _hash(str(bundle), member.name) + _hash(str(bundle), member.id)


@lru_cache(10_000)
def _hash(*texts: str) -> bytes:
    return hashlib.sha256("/".join(texts).encode()).digest()
