"""Rebuild the delayed index of a dataDirectory on S3: that of each bundle, as the bundle's owner.

    claim of a bundle ─► its log on the local disk ─► as `log_rebuild` ─► the properties: one object of the bundle's log

A service that starts meanwhile takes its bundles over. Then the last step is refused, and nothing has changed.
"""

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.errors import NameNotFoundError
from managed_ledger.names import find_cursor
from managed_ledger.objects.object_store import ObjectStore
from managed_ledger.objects.shipped_database import open_shipped
from managed_ledger.positions.value_types import OnStage, OnStep
from postdate.index.prefix_place import PrefixPlace
from postdate.pipeline.jobs.log_rebuild import RebuildReport, rebuild_index
from postdate.pipeline.planning.rules import RebuildRules
from postdate.pipeline.publishing.cursor_log import CursorLog


def check_prefix(prefix: str, index: str | None, bundle: str | None, topics: Sequence[str]) -> None:
    """Check, before a rebuild begins, that a prefix has what is meant, and that no service uses it.

    Args:
        prefix: As for `rebuild_prefix`.
        index: The same.
        bundle: The same.
        topics: The same.

    Raises:
        StoreLockedError: A service uses it.
        LedgerError: There is no log, or no such bundle.
        SnapshotStorageError: The storage does not answer, or refuses.
        ValueError: The index is not on S3.
    """
    with PrefixPlace(prefix) as place:
        for one in place.chosen(bundle, topics):
            place.index_of(one, index)
        place.check_unused()


def rebuild_prefix(
    spark: SparkSession,
    prefix: str,
    index: str | None = None,
    *,
    rules: RebuildRules,
    log: str | None = None,
    bundle: str | None = None,
    topics: Sequence[str] | None = None,
    cursors: Sequence[str] | None = None,
    on_stage: OnStage = lambda _name, _steps: None,
    on_step: OnStep = lambda _steps: None,
) -> RebuildReport:
    """Replace the index of subscriptions by one that is made from the log, bundle by bundle.

    The log of a bundle is in a temporary folder meanwhile; on a cluster of Spark, all machines must see it.

    Args:
        spark: The session.
        prefix: `s3://BUCKET/PREFIX`, whose services are stopped.
        index: The services' place of snapshots on S3, where it is not the default.
        rules: As for `rebuild_log`.
        log: Where the headers are, if elsewhere: an export.
        bundle: Only the bundle of this range.
        topics: Only these, by their short or whole names; None for all.
        cursors: Only subscriptions of these names; None for all.
        on_stage: Told of each stage.
        on_step: Told how many steps of the stage are done since it was told last.

    Returns:
        What was done in all bundles together.

    Raises:
        LogFencedError: A service has taken a bundle; the index of this bundle, and of those after, is as it was.
        Exception: As `rebuild_log`; bundles before the one that failed are done.
    """
    report = RebuildReport()
    with PrefixPlace(prefix) as place:
        chosen = place.chosen(bundle, topics or ())
        missing = set(cursors or ())
        for one, topics_of_one in chosen.items():
            with _taken(place.objects_of(one)) as owners:
                cursors_of_one = None if cursors is None else _there(owners, cursors)
                if cursors_of_one == []:
                    continue
                missing.difference_update(cursors_of_one or ())
                done = rebuild_index(
                    spark,
                    log or str(owners.folder),
                    place.index_of(one, index),
                    owners,
                    rules=rules,
                    topics=topics_of_one or None,
                    cursors=cursors_of_one,
                    on_stage=on_stage,
                    on_step=on_step,
                )
            _add(report, done)
    if missing:
        raise NameNotFoundError(f"{prefix} has no subscription {', '.join(sorted(missing))}")
    return report


@contextmanager
def _taken(objects: ObjectStore) -> Iterator[CursorLog]:
    """Take over the log of a bundle, and give its cursors."""
    with tempfile.TemporaryDirectory(prefix="postdate-bundle-") as folder:
        path = Path(folder)
        database = open_shipped(
            path,
            ManagedLedgerConfig(),
            objects=objects,
            now_ms=lambda: time.time_ns() // 1_000_000,
            on_lost=lambda: None,
        )
        try:
            owners = CursorLog(path / "log", database)
        except BaseException:
            database.let_go()
            raise
        with owners:
            yield owners


def _there(owners: CursorLog, cursors: Sequence[str]) -> list[str]:
    """Return the names that the bundle has a subscription of."""
    known = {name.cursor for name in owners.names()}
    found = []
    for cursor in cursors:
        try:
            find_cursor(cursor, known)
        except NameNotFoundError:
            continue
        found.append(cursor)
    return found


def _add(report: RebuildReport, done: RebuildReport) -> None:
    report.ledgers += done.ledgers
    report.entries_read += done.entries_read
    report.rows += done.rows
    report.bad_rows += done.bad_rows
    report.published.buckets += done.published.buckets
    report.published.removed_ids += done.published.removed_ids
