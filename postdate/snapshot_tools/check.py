"""`postdate check`: whether the log and the index are whole, and fit together.

`managed_ledger.repair` reads the files of the log, `postdate.index.checking` the snapshots, and compares both.
"""

import asyncio
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click

from managed_ledger.bundles import BundleRange
from managed_ledger.errors import LedgerError, NameNotFoundError, StoreLockedError
from managed_ledger.positions.value_types import Json
from managed_ledger.repair.log_check import check_is_log
from managed_ledger.repair.repairing import LogVerdict
from managed_ledger.repair.repairing import verify as verify_log
from postdate.broker.configuration.config import BrokerConfig
from postdate.command_line.endings import EXIT_CODE_WRONG, help_end
from postdate.command_line.output import json_option, make_console, print_json
from postdate.command_line.progress import Steps
from postdate.command_line.times import TIME
from postdate.index.bundle_choice import refuse_several
from postdate.index.checking import SECOND_LOOK_AFTER_S, IndexCheck, IndexVerdict
from postdate.index.entry_format import PulsarEntries
from postdate.index.location import Location
from postdate.index.opening import Filter
from postdate.pipeline.cli.common import wall_clock_ms
from postdate.pipeline.cli.ledger import tell_damage
from postdate.snapshot_tools.export import ParquetFile
from postdate.snapshot_tools.json_output import verdict_json
from postdate.snapshot_tools.options import filters, index_named, index_option, log_of, on_bundles, opened
from postdate.snapshot_tools.report import print_verdict
from snapshot_storage.errors import SnapshotStorageError


def _finite(_context: click.Context, _option: click.Parameter, seconds: float) -> float:
    if not math.isfinite(seconds):
        raise click.BadParameter(f"{seconds} is no number of seconds")
    return seconds


@click.command(
    epilog=help_end(
        "postdate check",
        "postdate check --config config/broker.conf --topic orders",
        "postdate check --data /var/lib/postdate || echo 'look at what it says'",
        "postdate check --positions /tmp/faults.parquet",
        wrong="a fault was found",
    ),
)
@on_bundles
@index_option
@filters
@click.option(
    "--now", "now_ms", type=TIME, default=wall_clock_ms, help="Messages due then need no index. Default: now."
)
@click.option(
    "--second-look",
    "second_look_after_s",
    type=click.FloatRange(min=0),
    callback=_finite,
    default=SECOND_LOOK_AFTER_S,
    show_default=True,
    metavar="SECONDS",
    help="The wait before a fault of the index is looked at again.",
)
@click.option(
    "--positions",
    "path",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the messages that the index has otherwise than the log to this Parquet file.",
)
@json_option("log and index, each null where it was not checked")
def check(
    configs: Mapping[BundleRange, BrokerConfig],
    *,
    index: str | None,
    which: Filter,
    now_ms: int,
    second_look_after_s: float,
    path: Path | None,
    is_json: bool,
    prefix: str | None = None,
) -> None:
    """Say whether the log and the index are whole: every file of the log, every snapshot, and whether they fit.

    Works beside a running service too, which has the files of the log to itself: these are checked on a stopped one,
    and not where --topic or --subscription narrow the check. Of the index, every checksum is checked, every bitmap
    against its segment, every cursor property against the storage, and the messages against those of the log. Each
    fault is looked at a second time a little later, as the snapshots of a running service come and go. Of a folder with
    several bundles each is checked. A dataDirectory on S3 is read out to a temporary folder, also beside its services,
    and its log is checked; the index is their own matter, who make it anew where it is not whole.

    Nothing is changed. `postdate ledger repair` mends the log, `postdate pipeline rebuild` the index.
    """
    if index is not None and len(configs) > 1:
        refuse_several(configs)
    for config in configs.values():
        _place(config, index)
        check_is_log(log_of(config))
    positions = None if path is None else ParquetFile(path, *_POSITION_COLUMNS)
    try:
        with Steps().shown() as steps:
            checked = {
                bundle: found
                for bundle, config in configs.items()
                if (found := _checked(config, index, which, now_ms, second_look_after_s, steps, is_one_of=len(configs)))
            }
        if not checked:
            # In none of them; the first one says what is near.
            checked_alone = _checked(next(iter(configs.values())), index, which, now_ms, 0, steps, is_one_of=1)
            assert checked_alone is not None
        if positions is not None:
            _write_positions(positions, [one.index for one in checked.values() if one.index is not None])
    finally:
        if positions is not None:
            positions.discard()
    is_whole = all(one.is_whole for one in checked.values())
    if is_json:
        found_json = {str(bundle): _as_json(one) for bundle, one in checked.items()}
        print_json(
            next(iter(found_json.values())) if len(configs) == 1 else {"bundles": found_json, "is_whole": is_whole}
        )
    else:
        for bundle, one in checked.items():
            if len(configs) > 1:
                click.echo(f"Bundle {bundle}:")
            _tell(one, is_meant=which == Filter(), prefix=prefix)
    if not is_whole:
        sys.exit(EXIT_CODE_WRONG)


@dataclass(frozen=True, slots=True)
class _Checked:
    """What was found of one bundle."""

    data: Path
    log: LogVerdict | None
    index: IndexVerdict | None
    unchecked: str
    """Why the index was not checked, where it was not."""
    is_index_well: bool
    """Whether an index that was not checked is not there to be checked."""

    @property
    def is_whole(self) -> bool:
        is_index_whole = self.is_index_well if self.index is None else self.index.is_whole
        return is_index_whole and (self.log is None or self.log.is_whole)


def _place(config: BrokerConfig, index: str | None) -> Location | None:
    """Return where the index of a bundle is; None where that is the service's memory."""
    if index is None and config.snapshot_storage == "memory":
        return None
    return index_named(config, index)


def _checked(
    config: BrokerConfig,
    index: str | None,
    which: Filter,
    now_ms: int,
    second_look_after_s: float,
    steps: Steps,
    *,
    is_one_of: int,
) -> _Checked | None:
    """Check one bundle; None where it is one of several and has no such topic or subscription."""
    log, place = log_of(config), _place(config, index)
    verdict, log_verdict = None, None
    unchecked = "it is in the service's memory alone" if place is None else ""
    if which == Filter():
        log_verdict = _checked_log(log, steps)
    if place is not None:
        work = IndexCheck(
            opened=partial(opened, config, place),
            log=log,
            which=which,
            now_ms=now_ms,
            on_stage=steps.begin,
            on_step=steps.advance,
        )
        try:
            verdict = asyncio.run(work.run(second_look_after_s=second_look_after_s))
        except NameNotFoundError:
            if is_one_of == 1:
                raise
            return None
        except (LedgerError, SnapshotStorageError) as error:
            if log_verdict is None:
                raise
            unchecked = str(error)
    return _Checked(config.data_folder, log_verdict, verdict, unchecked, is_index_well=place is None)


_POSITION_COLUMNS = ("finding", "topic", "cursor"), ("ledger_id", "entry_id", "deliver_at_ms")


def _checked_log(log: Path, steps: Steps) -> LogVerdict | None:
    """Read every file of the log; None where a service has it open."""
    try:
        return verify_log(log, entry_format=PulsarEntries(), on_stage=steps.begin, on_step=steps.advance)
    except StoreLockedError:
        return None


def _write_positions(file: ParquetFile, verdicts: Sequence[IndexVerdict]) -> None:
    for one in (compared for verdict in verdicts for compared in verdict.compared):
        for finding, rows in one.positions.items():
            file.write((finding.value, one.topic, one.cursor), (rows.ledger_ids, rows.entry_ids, rows.deliver_at_ms))
    file.finish()


def _as_json(checked: _Checked) -> Json:
    log, index = checked.log, checked.index
    return {
        "log": None if log is None else {"is_whole": log.is_whole} | log.as_json(),
        "index": None if index is None else verdict_json(index),
        "is_whole": checked.is_whole,
    }


def _tell(checked: _Checked, *, is_meant: bool, prefix: str | None) -> None:
    if checked.log is not None:
        click.echo("Log:")
        tell_damage(checked.log)
        if not checked.log.is_whole:
            data = checked.data if prefix is None else "DATA"
            copied = "" if prefix is None else f"after `postdate ledger copy {prefix} DATA` "
            click.echo(
                f"{copied}`postdate ledger repair {data} --yes` keeps what is whole, and the damaged log beside it"
            )
    elif is_meant:
        click.echo("Log: a service has it open, so its files were not read. Stop it to have them checked.")
    if checked.index is None:
        unchecked = (
            checked.unchecked
            if prefix is None or not checked.is_index_well
            else "it is on S3, and changes while services run"
        )
        click.echo(f"Index: not checked: {unchecked}")
    else:
        print_verdict(make_console(), checked.index, str(checked.data))
