"""A move of an index on Spark, as `postdate snapshots copy --update-cursors --workers spark` does it."""

import asyncio
from contextlib import nullcontext
from pathlib import Path

from pyspark.sql import SparkSession

from postdate.broker.configuration.config import BrokerConfig
from postdate.pipeline.index.index_copy import Copied
from postdate.pipeline.jobs.copies import SparkCopies
from postdate.snapshot_tools.copy import copy_snapshots
from postdate.snapshot_tools.place import Filter, index_place, target_place, task_location


def move(spark: SparkSession, data: str, source: str, target: str, *, deletes_source: bool = False) -> Copied:
    """Move the index of a stopped service from one place to another.

    Args:
        spark: The session.
        data: The data folder, whose cursors are updated.
        source: The text of `--index`.
        target: The text of `--to`.
        deletes_source: Whether `--delete-source` is given.
    """
    config = BrokerConfig(data_directory=Path(data))
    index = index_place(config, source)
    there = target_place(config, target, index)
    locations = task_location(index), task_location(there)
    return asyncio.run(
        copy_snapshots(
            config,
            there,
            Filter(),
            lambda _done, _total: None,
            index=index,
            workers=SparkCopies(lambda: nullcontext(spark), *locations, config.data_directory / "ledgers"),
            updates_cursors=True,
            deletes_source=deletes_source,
        )
    )
