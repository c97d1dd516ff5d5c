"""Which bundle of a data folder a tool works on, where the folder has several.

A tool that looks at all of them asks `chosen_bundles`, and one that can do only one at a time `one_bundle`. Either
gives folders that are data folders themselves, with `ledgers` and `snapshots`.
"""

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click

from managed_ledger.bundle_settings import bundle_folders
from managed_ledger.bundles import BundleRange, bundle_of
from managed_ledger.errors import BundlesError
from managed_ledger.names import full_topic_name

Command = TypeVar("Command", bound=Callable[..., Any])


def bundle_option(command: Command) -> Command:
    """Add `--bundle`, which a command gets as `bundle`."""
    text = "Only this bundle of a data folder that has several, such as 0x00000000_0x40000000."
    return click.option("--bundle", metavar="RANGE", help=text)(command)


def chosen_bundles(data: Path, bundle: str | None, topics: Collection[str] = ()) -> dict[BundleRange, Path]:
    """Return the bundles that are meant, with their folders: the one that is named, those of the topics, or all.

    Args:
        data: The data folder; where none is, it has one bundle.
        bundle: The name of a range, None for any.
        topics: Names of topics, short or whole; empty for any.

    Raises:
        BundlesError: There is no such bundle.
        LedgerError: The list of bundles makes no sense.
    """
    folders = bundle_folders(data)
    return {one: folders[one] for one in chosen_ranges(tuple(folders), str(data), bundle, topics)}


def chosen_ranges(
    ranges: tuple[BundleRange, ...], place: str, bundle: str | None, topics: Collection[str] = ()
) -> tuple[BundleRange, ...]:
    """Return which of a place's bundles are meant: the one that is named, those of the topics, or all.

    Args:
        ranges: All of them.
        place: Where they are, for the error.
        bundle: The name of a range, None for any.
        topics: Names of topics, short or whole; empty for any.

    Raises:
        BundlesError: There is no such bundle.
    """
    if bundle is not None:
        found = tuple(one for one in ranges if str(one) == bundle)
        if not found:
            raise BundlesError(f"{place} has no bundle {bundle}: there {_are(ranges)}")
        return found
    homes = {bundle_of(full_topic_name(topic), ranges) for topic in topics}
    return tuple(one for one in ranges if one in homes or not topics)


def one_bundle(data: Path, bundle: str | None, topics: Collection[str] = ()) -> Path:
    """Return the folder of the bundle that is meant, where only one can be.

    Args:
        data: The data folder; where none is, it has one bundle.
        bundle: The name of a range, None where it need not be said.
        topics: Names of topics, short or whole, which tell the bundle as well.

    Raises:
        BundlesError: It has several, and it is not said which one; or it has no such one.
        LedgerError: The list of bundles makes no sense.
    """
    found = chosen_bundles(data, bundle, topics)
    if len(found) > 1:
        refuse_several(found)
    return next(iter(found.values()))


def refuse_several(bundles: Collection[BundleRange]) -> NoReturn:
    """Refuse what can be done with one bundle at a time.

    Raises:
        BundlesError: Always; it names the bundles.
    """
    raise BundlesError(
        f"There are several bundles, and this is done with one at a time: say --bundle RANGE. There {_are(bundles)}"
    )


def bundle_data(data: str, bundle: str | None, topics: Collection[str] = ()) -> str:
    """Return the place of the bundle that is meant of a place that a job is given: a data folder, or any other one.

    Raises:
        BundlesError: As `one_bundle`; or a bundle is named of what is no data folder.
        LedgerError: The list of bundles makes no sense.
    """
    if "://" in data:
        if bundle is not None:
            raise BundlesError(f"--bundle is for data folders here, and {data} is none")
        return data
    folder = Path(data)
    chosen = one_bundle(folder, bundle, topics)
    # As it was written, where it stays the same: it is in texts.
    return data if chosen == folder else str(chosen)


def _are(folders: Collection[BundleRange]) -> str:
    return f"{'is' if len(folders) == 1 else 'are'} {', '.join(map(str, folders))}"
