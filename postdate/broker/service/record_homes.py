"""Where a service's records are in a place with several bundles.

delayedDelivery persistent://..., topicEpoch ..., closedTopic ...     in the bundle of the topic
trail N                                                               in any bundle: lists of it are merged
permissions tenant/namespace, delayedDelivery tenant/namespace        in none, as they are of all of them
"""

from collections.abc import Sequence

from managed_ledger.bundles import BundleRange, bundle_of
from managed_ledger.objects.shared_records import TRAIL, is_shared


def home_of_record(name: str, ranges: Sequence[BundleRange]) -> BundleRange | None:
    """Return the bundle of a record, by its name; None where it belongs to the shared settings.

    >>> from managed_ledger.bundles import even_ranges
    >>> str(home_of_record("topicEpoch persistent://public/default/orders", even_ranges(2)))
    '0x80000000_0xffffffff'
    >>> home_of_record("permissions public/default", even_ranges(2))
    """
    if is_shared(name):
        return None
    kind, _, owner = name.partition(" ")
    return ranges[0] if kind == TRAIL else bundle_of(owner, ranges)
