"""What a service does next about a bundle.

    away ──warm──► ready ──────────open──────────► open ──close──► away
      └──────────────────open───────────────────────▲
                (nobody has it)

A bundle that another living service has is warmed first, and that one is told so (`Member.ready`); then it closes, and
this one opens. Until then it goes on serving: a bundle is without an owner for no longer than this takes.
"""

from collections.abc import Collection
from enum import Enum, auto

from managed_ledger.bundles import BundleRange
from postdate.broker.ownership.core.membership import Member
from postdate.broker.ownership.core.placement import Plan


class Step(Enum):
    """What to do about a bundle."""

    OPEN = auto()
    WARM = auto()
    CLOSE = auto()


def next_step(bundle: BundleRange, own: Member, others: Collection[Member], plan: Plan) -> Step | None:
    """Return what to do about a bundle about which this service does nothing now.

    Args:
        bundle: The bundle.
        own: This service, as it is now.
        others: The others that live, as they were last seen.
        plan: Whose each bundle is to be.
    """
    target = plan.get(bundle)
    if bundle in own.opened:
        is_awaited = any(one.id == target and bundle in one.ready | one.held for one in others)
        return Step.CLOSE if is_awaited else None
    if target != own.id:
        return None
    if not any(bundle in one.held for one in others):
        return Step.OPEN
    # One that is leaving closes it at once: by the time that it is warm, nobody would have had it for as long.
    is_closing = any(bundle in one.held and one.is_leaving for one in others)
    return None if bundle in own.ready or is_closing else Step.WARM
