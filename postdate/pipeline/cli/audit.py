"""The command `postdate pipeline audit`."""

import sys
from typing import TYPE_CHECKING, Any

import click

from managed_ledger.cursors.cursor_properties import CursorName
from postdate.command_line.endings import EXIT_CODE_WRONG, help_end
from postdate.command_line.output import iso, print_json
from postdate.command_line.progress import Steps
from postdate.pipeline.cli.common import job_options, new_session

if TYPE_CHECKING:
    from postdate.pipeline.jobs.audit import AuditReport

_UNKNOWN = "unknown owner"


@click.command(
    epilog=help_end(
        "postdate pipeline audit data",
        "postdate pipeline audit --positions /tmp/findings.parquet --subscription worker data",
        "postdate pipeline audit --repair data",
        wrong="a fault was found, or a snapshot could not be read; with --repair, that is left",
    )
)
@click.option("--positions", metavar="FILE", help="Write the faults of positions to this Parquet file.")
@click.option("--repair", "is_repairing", is_flag=True, help="Rebuild faulty indexes; the service must be stopped.")
@job_options(now="Messages due at this time need no index.")
def audit(
    data: str,
    index: str | None,
    topics: tuple[str, ...],
    cursors: tuple[str, ...],
    now_ms: int,
    positions: str | None,
    is_repairing: bool,
    master: str,
    is_json: bool,
) -> None:
    """Compare the delayed index with the log and the cursors, and each snapshot with its checksums and its entry 0.

    DATA is a service's data directory. The service may run, but not with --repair; a bucket that it seals or merges
    meanwhile may count as a fault. A snapshot that the storage does not answer for, as in an outage, is named and is no
    fault: its subscription is not compared, and not repaired for it.

    Repairing makes the index of every subscription with a fault anew, with default limits of segments and buckets,
    drops properties that name no bucket, and deletes snapshots that no property names. Then everything is compared
    again.
    """
    from postdate.pipeline.index.place import check_index, cursor_folder
    from postdate.pipeline.jobs.audit import audit as compare
    from postdate.pipeline.jobs.audit import repair, write_positions
    from postdate.pipeline.planning.rules import RebuildRules

    # Before Spark takes its seconds to start.
    check_index(index or data, cursor_folder(data, None), topics, cursors)
    printed: dict[str, Any] = {"now": iso(now_ms)}
    with new_session(master) as spark, Steps().shown() as steps:

        def look() -> "AuditReport":
            return compare(
                spark,
                data,
                index,
                now_ms=now_ms,
                topics=topics or None,
                cursors=cursors or None,
                on_stage=steps.begin,
                on_step=steps.advance,
            )

        report = look()
        printed["found"] = audit_json(report)
        _tell_findings(report, is_quiet=is_json)
        if positions is not None:
            written = write_positions(report, positions)
            printed["positions_written"] = written
            _tell(f"{written:,} positions written to {positions}", is_quiet=is_json)
        if is_repairing and report.has_faults:
            deleted = repair(
                spark,
                data,
                report,
                index,
                rules=RebuildRules(now_ms=now_ms),
                on_stage=steps.begin,
                on_step=steps.advance,
            )
            rebuilt = len(report.affected())
            _tell(f"{rebuilt} subscriptions rebuilt, {deleted} snapshots without a property deleted", is_quiet=is_json)
            report = look()
            printed |= {"rebuilt": rebuilt, "deleted": deleted, "left": audit_json(report)}
            _tell_findings(report, is_quiet=is_json)
    printed["is_clean"] = report.is_clean
    if is_json:
        print_json(printed)
    if not report.is_clean:
        sys.exit(EXIT_CODE_WRONG)


def _tell(text: str, *, is_quiet: bool) -> None:
    if not is_quiet:
        click.echo(text)


def audit_json(report: "AuditReport") -> dict[str, Any]:
    """Return the findings."""
    return {
        "index_rows": report.index_rows,
        "log_rows": report.log_rows,
        "subscriptions": [
            {
                "topic": cursor.topic,
                "cursor": cursor.subscription,
                "findings": {finding.value: count for finding, count in counts.items() if count},
            }
            for cursor, counts in report.counts.items()
        ],
        "corrupt": [
            {"bucket_id": bucket_id, "topic": cursor.topic, "cursor": cursor.subscription, "reason": why}
            for bucket_id, (cursor, why) in report.corrupt.items()
        ],
        "unavailable": [
            {
                "bucket_id": bucket_id,
                "topic": None if cursor is None else cursor.topic,
                "cursor": None if cursor is None else cursor.subscription,
                "reason": why,
            }
            for bucket_id, (cursor, why) in report.unavailable.items()
        ],
        "ownership": [
            {
                "kind": str(problem.kind),
                "bucket_id": problem.bucket_id,
                "topic": problem.topic_name or None,
                "cursor": CursorName(problem.topic_name, problem.cursor_name).subscription or None,
                "what": problem.what,
            }
            for problem in report.ownership
        ],
        "is_clean": report.is_clean,
    }


def _tell_findings(report: "AuditReport", *, is_quiet: bool) -> None:
    if is_quiet:
        return
    click.echo(f"{report.index_rows:,} indexes compared with {report.log_rows:,} delayed messages")
    for cursor, counts in report.counts.items():
        found = ", ".join(f"{count:,} {finding.value}" for finding, count in counts.items() if count)
        if found:
            click.echo(f"{cursor}: {found}")
    for bucket_id, (cursor, why) in report.corrupt.items():
        click.echo(f"{cursor}: snapshot {bucket_id} is corrupt: {why}")
    for bucket_id, (of_cursor, why) in report.unavailable.items():
        click.echo(f"{of_cursor or _UNKNOWN}: snapshot {bucket_id} was not compared: {why}")
    for problem in report.ownership:
        kind = "dangling" if problem.kind == "missing" else problem.kind
        name = CursorName(problem.topic_name, problem.cursor_name)
        owner = str(name) if problem.topic_name else _UNKNOWN
        click.echo(f"{owner}: {kind}: {problem.bucket_id}, {problem.what}")
    if report.has_faults:
        click.echo("the index is not as it should be")
    else:
        click.echo("nothing is wrong" if report.is_clean else "nothing else is wrong: audit again after the outage")
