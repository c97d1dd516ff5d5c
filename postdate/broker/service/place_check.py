"""What is asked of a prefix before a service uses it: that nothing can be lost there, and that it is the right one.

Safety rests on conditional writes: an owner that another one has replaced meets an object of its successor's. So a
server that ignores the conditions is refused, and a bucket whose rules take objects away by age as well, as the objects
that stop such an owner are old ones. The rest guards against mistakes: another cluster's prefix, or one of other files.
"""

import logging
import secrets
from collections.abc import Sequence
from itertools import islice
from typing import Final

from managed_ledger.bundle_settings import SETTINGS, decode_settings, encode_settings
from managed_ledger.bundles import BundleRange, even_ranges
from managed_ledger.errors import LedgerError
from managed_ledger.objects.object_store import ObjectStore
from postdate.broker.errors import ServiceStartError

logger = logging.getLogger(__name__)

DEFAULT_BUNDLES: Final = 4

SECRET: Final = "secret"
"""The object by whose content the services of a prefix know each other's requests."""

_PROBES: Final = "probe/"


def check_conditions(objects: ObjectStore) -> None:
    """Try whether the storage keeps the conditions of writes, with an object that is deleted again.

    Raises:
        ServiceStartError: It does not.
    """
    name = f"{_PROBES}{secrets.token_hex(16)}"
    try:
        if not objects.create(name, b"first") or objects.create(name, b"second"):
            raise _unconditional(objects, "If-None-Match")
        first = objects.read(name)
        if first is None or first[0] != b"first":
            raise _unconditional(objects, "If-None-Match")
        if objects.replace(name, b"third", first[1]) is None or objects.replace(name, b"fourth", first[1]) is not None:
            raise _unconditional(objects, "If-Match")
    finally:
        objects.delete(name)


def _unconditional(objects: ObjectStore, header: str) -> ServiceStartError:
    return ServiceStartError(
        f"The server of {objects} does not keep the condition {header} of a write, by which a service finds out that "
        "another one has taken over: messages would be lost. Use one that does, as AWS, MinIO and versitygw"
    )


def check_rules(place: str, rules: Sequence[str] | None) -> None:
    """Refuse a bucket whose rules take objects of the place away.

    Args:
        place: The place, for the texts.
        rules: The names of such rules; None where the bucket does not tell.

    Raises:
        ServiceStartError: There is one.
    """
    if rules is None:
        logger.warning(
            "whether a lifecycle rule deletes objects of %s cannot be read (s3:GetLifecycleConfiguration): there must "
            "be none, as messages would be lost",
            place,
        )
    elif rules:
        raise ServiceStartError(
            f"The lifecycle rule {', '.join(rules)} of the bucket deletes or archives objects of {place} by their age, "
            "and messages would be lost with them: limit it to other prefixes"
        )


def settled_bundles(objects: ObjectStore, cluster: str, count: int | None) -> tuple[BundleRange, ...]:
    """Return the bundles of a prefix; an empty one gets its list, for this cluster.

    Args:
        objects: The prefix.
        cluster: The name of the cluster.
        count: How many bundles it has, or is to have; None for what there is, or the default.

    Raises:
        ServiceStartError: It is another cluster's, has another number of bundles, is of another format, or has other
            files.
    """
    found = objects.read(SETTINGS)
    if found is None:
        other = next(islice((one for one in objects.names("") if not _is_ours(one)), 1), None)
        # Another service may have begun meanwhile.
        found = objects.read(SETTINGS)
        if found is None and other is not None:
            raise ServiceStartError(
                f"{objects} has no {SETTINGS}, and other files, such as {other}: name a prefix that is empty, or "
                f"restore {SETTINGS} if it was deleted"
            )
    if found is None:
        made = encode_settings(even_ranges(count or DEFAULT_BUNDLES), cluster)
        if objects.create(SETTINGS, made):
            logger.info("%s is new: it has %d bundles", objects, count or DEFAULT_BUNDLES)
            return decode_settings(made, str(objects))[0]
        found = objects.read(SETTINGS)
        if found is None:
            raise ServiceStartError(f"{SETTINGS} of {objects} was deleted just now: start again")
    try:
        ranges, of_cluster = decode_settings(found[0], f"{objects}/{SETTINGS}")
    except LedgerError as error:
        raise ServiceStartError(str(error)) from error
    if of_cluster != cluster:
        raise ServiceStartError(
            f"{objects} belongs to the cluster {of_cluster!r}, and clusterName is {cluster!r}: correct clusterName, or "
            "name another prefix; two clusters cannot share one"
        )
    if count is not None and count != len(ranges):
        raise ServiceStartError(
            f"{objects} has {len(ranges)} bundles, and numberOfBundles is {count}: leave it empty, or copy the prefix "
            "to another one with `postdate ledger copy`"
        )
    return ranges


def settled_secret(objects: ObjectStore) -> str:
    """Return what the services of a prefix show each other; the first one makes it.

    Raises:
        ServiceStartError: It is deleted again and again.
    """
    for _ in range(2):
        if (found := objects.read(SECRET)) is not None:
            return found[0].decode()
        if objects.create(SECRET, (made := secrets.token_urlsafe()).encode()):
            return made
    raise ServiceStartError(f"{SECRET} of {objects} was deleted just now: start again")


def _is_ours(name: str) -> bool:
    """Whether a name may be there before the list of bundles is: of a start that was killed, or is under way."""
    return name == SETTINGS or name.startswith(_PROBES)
