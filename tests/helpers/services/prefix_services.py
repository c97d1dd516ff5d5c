"""Services that share a prefix of an S3 server: their topics, their owners, and what they say of each other."""

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from managed_ledger.bundles import BundleRange, bundle_of, even_ranges
from postdate.demo.process import PostdateProcess
from tests.helpers.storages.s3_servers import ACCESS_KEY_ID, BUCKET, SECRET_ACCESS_KEY, S3Server

RANGES = even_ranges(4)
LEASE_S = 2


def prefix_settings(server: S3Server, prefix: str, cache: Path) -> dict[str, str]:
    """Return the keys of a service on a prefix of a server, with a short lease."""
    return {
        "dataDirectory": f"s3://{BUCKET}/{prefix}",
        "s3Endpoint": server.endpoint,
        "s3Region": "us-east-1",
        "s3PathStyle": "true",
        "s3AccessKeyId": ACCESS_KEY_ID,
        "s3SecretAccessKey": SECRET_ACCESS_KEY,
        "cacheDirectory": str(cache),
        "bundleLeaseSeconds": str(LEASE_S),
    }


def name_of(service: PostdateProcess) -> str:
    """Return the name that a service has among the others."""
    return service.web_url.partition("://")[2]


def cluster_of(service: PostdateProcess) -> dict[str, Any]:
    """Return what a service says of all."""
    answer: dict[str, Any] = json.loads(service.read("/postdate/v1/cluster"))
    return answer


def opened_at(service: PostdateProcess, asked: PostdateProcess | None = None) -> list[str]:
    """Return the bundles that a service has open, as one of them says; none for one that is not known."""
    services = cluster_of(asked or service)["services"]
    return next((one["bundles"] for one in services if one["name"] == name_of(service)), [])


def topic_by_bundle(ranges: Sequence[BundleRange] = RANGES) -> dict[str, str]:
    """Return a topic of each bundle."""
    found: dict[str, str] = {}
    for number in itertools.count():
        topic = f"persistent://public/default/orders-{number}"
        found.setdefault(str(bundle_of(topic, ranges)), topic)
        if len(found) == len(ranges):
            break
    return {str(bundle): found[str(bundle)] for bundle in ranges}
