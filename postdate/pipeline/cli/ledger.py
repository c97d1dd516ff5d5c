"""The command `postdate ledger repair`: it finds the damage of a log, and keeps the rest.

It needs neither Spark nor a service, and the log for itself. `postdate check` finds the damage alone.
"""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from postdate.command_line.endings import help_end
from postdate.command_line.options import yes_option
from postdate.command_line.output import json_option, print_json
from postdate.command_line.progress import Steps
from postdate.index.bundle_choice import bundle_option
from postdate.pipeline.cli.common import of_bundle, refusing

if TYPE_CHECKING:
    from managed_ledger.repair.repairing import LogVerdict

LEDGERS_FOLDER = "ledgers"
SPANS_SHOWN = 10
LINES_SHOWN = 50


@click.command(epilog=help_end("postdate ledger repair data --yes", "postdate ledger repair --json data --yes"))
@click.argument("data")
@bundle_option
@yes_option("Repair the log; without this option nothing is changed.")
@json_option()
@refusing
@of_bundle
def repair(data: str, is_sure: bool, is_json: bool) -> None:
    """Keep the whole entries of a damaged log, so that the service starts.

    DATA is a service's data directory; the service must be stopped. Whole entries go to a new folder, which takes the
    damaged one's place. The damaged one stays beside it, with a report of the losses. Acknowledgements
    that are lost mean that messages come again.
    """
    from managed_ledger.repair.repairing import Repaired
    from managed_ledger.repair.repairing import repair as repair_log
    from postdate.index.entry_format import PulsarEntries

    folder = log_in(data)
    if not is_sure:
        raise click.UsageError(f"This puts another log in the place of {folder}: say --yes. Try `postdate check` first")
    with Steps().shown() as steps:
        outcome = repair_log(
            folder,
            entry_format=PulsarEntries(),
            name_of_time=f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}",
            on_stage=steps.begin,
            on_step=steps.advance,
        )
    verdict = outcome.verdict if isinstance(outcome, Repaired) else outcome
    done = {"is_repaired": isinstance(outcome, Repaired)} | verdict.as_json()
    if isinstance(outcome, Repaired):
        done |= {"kept_folder": str(outcome.kept_folder), "report": str(outcome.report)}
    if is_json:
        print_json(done)
        return
    tell_damage(verdict)
    if isinstance(outcome, Repaired):
        click.echo(f"{folder} is repaired: {done['kept_entries']:,} entries are kept, {done['lost_entries']:,} lost")
        if verdict.survey.is_end_missing:
            click.echo("beside those, the newest changes are lost: nothing is left that names them")
        click.echo(f"the damaged log is in {outcome.kept_folder}, what was lost in {outcome.report}")


def log_in(data: str) -> Path:
    """The folder of the log of a data directory, which may also be named itself.

    Raises:
        StoreUnavailableError: There is none.
    """
    from managed_ledger.repair.log_check import check_is_log

    path = Path(data)
    folder = path / LEDGERS_FOLDER if (path / LEDGERS_FOLDER).is_dir() else path
    check_is_log(folder)
    return folder


def tell_damage(verdict: "LogVerdict") -> None:
    """Print what is damaged, the files first."""
    from managed_ledger.reading.unread_entries import runs

    lines = [f"{one.file}: {one.what}" for one in verdict.problems]
    for one in verdict.findings.ledgers:
        if one.lost:
            shown = [f"{first}-{last}" if first < last else f"{first}" for first, last in runs(one.lost)]
            rest = f" and {len(shown) - SPANS_SHOWN} more runs" if len(shown) > SPANS_SHOWN else ""
            lines.append(
                f"{one.topic}: ledger {one.ledger.ledger_id}: entries {', '.join(shown[:SPANS_SHOWN])}{rest} are lost, "
                f"{len(one.lost):,} of {one.ledger.entries:,}"
            )
    lines += [
        f"ledger {ledger_id}: {count:,} entries of an unknown topic are lost"
        for ledger_id, count in sorted(verdict.findings.unowned.items())
    ]
    lines += [f"{one.topic}: subscription {one.cursor}: {one.what}" for one in verdict.findings.cursors]
    for line in lines[:LINES_SHOWN]:
        click.echo(line)
    if len(lines) > LINES_SHOWN:
        click.echo(f"and {len(lines) - LINES_SHOWN:,} lines more: --json has all of them")
    if not lines:
        click.echo("nothing is damaged")
