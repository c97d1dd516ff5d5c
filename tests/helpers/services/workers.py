"""The workers of a service: their topics and their processes."""

import itertools
import re
from collections.abc import Sequence

from managed_ledger.bundles import BundleRange, bundle_of
from postdate.broker.ownership.worker_owners import spread
from postdate.demo.process import PostdateProcess


def topics_of(worker: int, ranges: Sequence[BundleRange], workers: int) -> list[str]:
    """Return a topic of each bundle of a worker."""
    found: dict[BundleRange, str] = {}
    for number in itertools.count():
        topic = f"persistent://public/default/orders-{number}"
        found.setdefault(bundle_of(topic, ranges), topic)
        if len(found) == len(ranges):
            break
    return [found[bundle] for bundle in spread(ranges, workers)[worker]]


def pid_of(service: PostdateProcess, worker: int) -> int:
    """Return the process id of a worker, of the last one that was ready."""
    return int(re.findall(rf"worker {worker} \(\S+\) is ready: process (\d+)", service.log_path.read_text())[-1])
