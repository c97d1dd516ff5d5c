"""A check and a move of the index of a stopped service, at any location, as the commands do them."""

import asyncio
from functools import partial
from pathlib import Path

from postdate.broker.configuration.config import BrokerConfig
from postdate.index.checking import IndexCheck, IndexVerdict
from postdate.index.comparing import IndexFinding
from postdate.index.index_copy import Copied
from postdate.index.location import location_at
from postdate.index.opening import Filter, open_index
from postdate.snapshot_tools.copy import copy_snapshots, target_named
from postdate.snapshot_tools.options import index_named
from tests.helpers.live_index import NOW_MS


def checked(data: Path, place: str | None = None) -> IndexVerdict:
    """Check the index of a data folder, which is in it or at another place."""
    location = location_at(place or str(data), data=data)
    log = data / "ledgers"
    work = IndexCheck(opened=partial(open_index, location, log), log=log, which=Filter(), now_ms=NOW_MS)
    return asyncio.run(work.run(second_look_after_s=0))


def total(verdict: IndexVerdict, finding: IndexFinding) -> int:
    """How many positions have a finding."""
    return sum(counts[finding] for counts in verdict.counts.values())


def move(data: str, source: str, target: str, *, deletes_source: bool = False) -> Copied:
    """Move the index from one place to another.

    Args:
        data: The data folder, whose cursors are updated.
        source: The text of `--index`.
        target: The text of `--to`.
        deletes_source: Whether `--delete-source` is given.
    """
    config = BrokerConfig(data_directory=Path(data))
    index = index_named(config, source)
    return asyncio.run(
        copy_snapshots(
            config,
            target_named(config, target, index),
            Filter(),
            lambda _done, _total: None,
            index=index,
            updates_cursors=True,
            deletes_source=deletes_source,
        )
    )
