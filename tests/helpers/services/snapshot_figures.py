"""Figures of a running service about its snapshots: how many its cursor names, and its counters in `/metrics`."""

import json

from postdate.demo.process import PostdateProcess
from snapshot_storage.bucket_key import BUCKET_KEY_PREFIX


def named_snapshots(service: PostdateProcess) -> int:
    """Return how many snapshots the one cursor of the topic `orders` names."""
    stats = json.loads(service.read("/admin/v2/persistent/public/default/orders/stats"))
    (subscription,) = stats["subscriptions"].values()
    return sum(name.startswith(BUCKET_KEY_PREFIX) for name in subscription["subscriptionProperties"])


def counted(service: PostdateProcess, name: str) -> float:
    """Return a counter of the trackers, summed over subscriptions."""
    lines = service.read("/metrics").splitlines()
    # The samples without a subscription are sums of these.
    return sum(float(line.split()[-1]) for line in lines if line.startswith(f"{name}{{") and "subscription=" in line)
