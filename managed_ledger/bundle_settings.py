"""Which bundles a data folder or a prefix has: one small object, made once and before the first bundle.

In a folder it is the file `bundles.json`; a folder without one has a single bundle, at the place that it always had.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from managed_ledger.bundles import WHOLE, BundleRange, covers_all
from managed_ledger.errors import StoreCorruptedError, StoreUnavailableError, StoreVersionError

SETTINGS: Final = "bundles.json"
BUNDLES: Final = "bundles"
"""The folder of the bundles, where there are several."""
LEDGERS: Final = "ledgers"
"""The log of a bundle, in its folder."""
SNAPSHOTS: Final = "snapshots"
"""Its index; on object storage that of all bundles, unless it is elsewhere."""
MEMBERS: Final = "members/"
"""The beginning of the names of the services' objects; a service that lives changes its own all the time."""
RESTORING: Final = f"{BUNDLES}.restoring"
"""The bundles of a folder that is being restored; it gets its own name last."""
DEFAULT_CLUSTER: Final = "standalone"
"""The cluster of services whose configuration names none."""
FORMAT: Final = "postdate bundles 1"


def encode_settings(ranges: Sequence[BundleRange], cluster: str = "") -> bytes:
    """Return the bytes of the object.

    Args:
        ranges: The bundles, which cover all hashes.
        cluster: The name of the cluster that a prefix belongs to; empty in a folder.
    """
    assert covers_all(ranges)
    content = {"format": FORMAT, "cluster": cluster, "bundles": [str(one) for one in ranges]}
    return json.dumps(content, indent=1).encode()


def decode_settings(data: bytes, place: str) -> tuple[tuple[BundleRange, ...], str]:
    """Read the bytes of the object: the bundles, in order, and the cluster's name.

    Args:
        data: The bytes.
        place: Where they are from, for the error.

    Raises:
        StoreVersionError: They are of another format.
        StoreCorruptedError: They make no sense.
    """
    try:
        content = json.loads(data)
        if content["format"] != FORMAT:
            raise StoreVersionError(f"{place} has the format {content['format']!r}, and this version reads {FORMAT!r}")
        ranges = tuple(sorted(BundleRange.parse(text) for text in content["bundles"]))
        if not covers_all(ranges):
            raise ValueError("its ranges leave a gap or overlap")
        return ranges, str(content["cluster"])
    except (ValueError, LookupError, TypeError) as error:
        raise StoreCorruptedError(f"{place} is damaged, or not Postdate's: {error}") from error


def ranges_in(data: Path) -> tuple[BundleRange, ...]:
    """Return the bundles of a data folder.

    Raises:
        StoreVersionError: They are of another format.
        StoreCorruptedError: The file makes no sense, or is missing beside bundles.
        StoreUnavailableError: The folder was being restored, and is not whole.
    """
    settings = data / SETTINGS
    if (data / RESTORING).is_dir():
        raise StoreUnavailableError(f"{data} is not whole, as restoring it was cut off: `postdate restore` again")
    try:
        found = settings.read_bytes()
    except FileNotFoundError:
        # Bundles beside a log are what a division that was cut off has left: that changed nothing.
        if not (data / LEDGERS).exists() and (data / BUNDLES).is_dir() and any((data / BUNDLES).iterdir()):
            raise StoreCorruptedError(
                f"{data} has bundles, and {SETTINGS} is missing: restore it from a copy"
            ) from None
        return (WHOLE,)
    return decode_settings(found, str(settings))[0]


def bundle_folder(data: Path, bundle: BundleRange) -> Path:
    """Return the folder of a bundle, which has `ledgers` and `snapshots`."""
    return data if bundle == WHOLE else data / BUNDLES / str(bundle)


def bundle_folders(data: Path) -> dict[BundleRange, Path]:
    """Return the folder of each bundle of a data folder, in order.

    Raises:
        LedgerError: As `ranges_in`.
    """
    return {one: bundle_folder(data, one) for one in ranges_in(data)}
